"""A trace as MLCommons Chakra execution traces, one file for each rank.

The field numbers, node types and kinds of collectives are those of Chakra's schema (schema/protobuf/et_def.proto,
package ChakraProtoMsg; arXiv 2305.14516). A file is a sequence of messages, each after its length as a varint: one
GlobalMetadata, then a Node for each span of computing and each operation.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from istbench.base.files import write_errors, writing_whole
from istbench.cluster.collectives import COLLECTIVES
from istbench.cluster.trace import AFTER, COMPUTE, KINDS, POST, RECEIVE, SEND, WAIT, WORK, Trace

_VERSION = "0.0.4"
_COMP, _SEND, _RECEIVE, _COLLECTIVE = 4, 5, 6, 7  # NodeType

Attribute = bool | int | str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChakraNode:
    """A node of an execution trace.

    kind: of NodeType. depends_on: earlier nodes that must be over before it starts.
    start_us, duration_us: of the recording, microseconds; operations have no duration.
    """

    id: int
    name: str
    kind: int
    depends_on: tuple[int, ...]
    start_us: int
    duration_us: int = 0
    attributes: Mapping[str, Attribute] = dataclasses.field(default_factory=dict)


def write_chakra(trace: Trace, about: Mapping[str, Attribute], folder: Path, stem: str) -> list[Path]:
    """Write the events of each rank of `trace` as `stem`.RANK.et into `folder`; returns the paths.

    about: attributes of the metadata of each file.

    Raises:
        UserError: if they cannot be written.
    """
    paths = []
    for rank, events in enumerate(trace.nodes):
        path = folder / f"{stem}.{rank}.et"
        known = {
            **about,
            "rank": rank,
            "world_size": trace.world_size,
            "steps": trace.steps,
            "rounds": trace.rounds,
        }
        with write_errors(path), writing_whole(path) as file:
            for message in (_metadata(known), *map(_node, chakra_nodes(events, rank))):
                file.write(_varint(len(message)) + message)
        paths.append(path)
    return paths


def chakra_nodes(events: NDArray[Any], rank: int) -> Iterator[ChakraNode]:
    """The nodes of the events of `rank`, in order.

    The computing of the training thread is a chain. A wait makes the next link depend on the operation. An
    operation depends on the computing before it, and on the operations that it follows. Waits for operations from
    before the sample are left out.
    """
    thread: tuple[int, ...] = ()
    after: list[int] = []
    operations: dict[int, int] = {}
    computed = 0.0
    for number, event in enumerate(events):
        code, kind, op = int(event["code"]), int(event["kind"]), int(event["op"])
        at = max(0, round(1e6 * float(event["at"])))
        if code == COMPUTE:
            before, computed = computed, computed + float(event["seconds"])
            lasts = round(1e6 * computed) - round(1e6 * before)  # so that the sum is right
            yield ChakraNode(
                id=number, name="compute", kind=_COMP, depends_on=thread, start_us=max(0, at - lasts),
                duration_us=lasts, attributes={"is_cpu_op": False},
            )  # fmt: skip
            thread = (number,)
        elif code == AFTER:
            after.append(operations[op])
        elif code == WAIT:
            thread = (*thread, operations[op])
        elif code == POST:
            operations[op] = number
            depends_on = tuple(dict.fromkeys((*thread, *after)))
            after.clear()
            yield ChakraNode(
                id=number, name=KINDS[kind], kind=_kind(kind), depends_on=depends_on, start_us=at,
                duration_us=round(1e6 * float(event["seconds"])), attributes=_attributes(event, kind, rank),
            )  # fmt: skip


def _kind(kind: int) -> int:
    return {SEND: _SEND, RECEIVE: _RECEIVE, WORK: _COMP}.get(kind, _COLLECTIVE)


def _attributes(event: np.void, kind: int, rank: int) -> dict[str, Attribute]:
    peer, size = int(event["peer"]), int(event["bytes"])
    found: dict[str, Attribute] = {"is_cpu_op": False}
    if kind == WORK:
        return {**found, "priority": int(event["priority"])}
    found["comm_size"] = size
    if kind in (SEND, RECEIVE):
        source, receiver = (rank, peer) if kind == SEND else (peer, rank)
        ends = {"comm_src": source, "comm_dst": receiver, "comm_tag": int(event["match"])}
        return {**found, **ends, "priority": int(event["priority"])}
    found["comm_type"] = COLLECTIVES[kind].chakra
    return {**found, "root": peer} if COLLECTIVES[kind].rooted else found


def _metadata(about: Mapping[str, Attribute]) -> bytes:
    return _bytes(1, _VERSION.encode()) + b"".join(_bytes(2, _attribute(name, about[name])) for name in about)


def _node(node: ChakraNode) -> bytes:
    parts = [
        _number(1, node.id),
        _bytes(2, node.name.encode()),
        _number(3, node.kind),
        _bytes(5, b"".join(map(_varint, node.depends_on))) if node.depends_on else b"",
        _number(6, node.start_us),
        _number(7, node.duration_us),
        *(_bytes(10, _attribute(name, value)) for name, value in node.attributes.items()),
    ]
    return b"".join(parts)


def _attribute(name: str, value: Attribute) -> bytes:
    """An AttributeProto: bool_val 27, string_val 29, and for numbers int64_val 9; sizes are uint64_val 13."""
    start = _bytes(1, name.encode())
    if isinstance(value, bool):
        return start + _number(27, int(value))
    if isinstance(value, str):
        return start + _bytes(29, value.encode())
    return start + _number(13 if name == "comm_size" else 9, value)


def _number(field: int, value: int) -> bytes:
    """A varint field. Zero is written too: in an AttributeProto it tells that the value is there."""
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Seven bits in a byte, the lowest first; the top bit says that more follow. Negative ones count as 64 bits."""
    value &= 2**64 - 1
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])
