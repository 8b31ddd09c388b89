"""A timeline as a file in the Trace Event Format (JSON) for ui.perfetto.dev and chrome://tracing."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from istbench.base.files import writing_whole
from istbench.report.timeline.timeline import NodeActivity, Timeline, Transfer

TraceEvent = dict[str, Any]

_COMPUTE, _OUT, _IN = 0, 1, 1001
_NAMES = {"compute": "compute", "communication": "exposed communication", "idle": "idle"}


def write_perfetto(timeline: Timeline, title: str, path: Path) -> None:
    """Write `timeline` to `path`, over an existing file.

    Raises:
        OSError: if it cannot be written.
    """
    document = {
        "displayTimeUnit": "ms",
        "otherData": {"title": title, "times": timeline.where, "round": timeline.round},
        "traceEvents": trace_events(timeline),
    }
    with writing_whole(path) as file:
        file.write(json.dumps(document, allow_nan=False, separators=(",", ":")).encode())


def trace_events(timeline: Timeline) -> list[TraceEvent]:
    """The events of the file: a process for each node, with threads for computing and for each way of its network.

    Slices of one thread must not overlap, so simultaneous transfers have threads of their own. An arrow leads from
    the sending to the arrival of each message.
    """
    events = [_activity(activity) for activity in timeline.activities]
    numbered = list(enumerate(timeline.transfers))
    for node in range(timeline.nodes):
        out = _rows([(number, transfer) for number, transfer in numbered if transfer.source == node])
        into = _rows([(number, transfer) for number, transfer in numbered if transfer.target == node])
        events += _names(node, len(out), len(into))
        for first, rows in ((_OUT, out), (_IN, into)):
            for thread, row in enumerate(rows, start=first):
                for number, transfer in row:
                    events += _transfer(transfer, node, thread, number)
    return events


def _activity(activity: NodeActivity) -> TraceEvent:
    arguments = {}
    if activity.kind == "compute":
        arguments = {"cpu_seconds": activity.busy_s, "wall_seconds": activity.seconds}
    return _slice(_NAMES[activity.kind], activity.node, _COMPUTE, activity, arguments)


def _transfer(transfer: Transfer, node: int, thread: int, number: int) -> Iterator[TraceEvent]:
    """The slice of `transfer` at one of its nodes, and the end of its arrow there."""
    operation = transfer.operation.replace("_", "-")
    arguments = {"bytes": transfer.bytes, "source": transfer.source, "target": transfer.target}
    if transfer.target is None:
        yield _slice(operation, node, thread, transfer, arguments)
        return
    sends = node == transfer.source
    peer = f"to node {transfer.target}" if sends else f"from node {transfer.source}"
    event = _slice(f"{operation} {peer}", node, thread, transfer, arguments)
    yield event
    arrow = {"name": "message", "cat": "message", "id": number, "pid": node, "tid": thread}
    if sends:
        yield {**arrow, "ph": "s", "ts": event["ts"]}
    else:
        # An arrow ends on the slice around its time. The end of a slice is not part of it.
        last = max(event["ts"], event["ts"] + event["dur"] - 1e-3)
        yield {**arrow, "ph": "f", "bp": "e", "ts": round(last, 3)}


def _slice(name: str, node: int, thread: int, span: NodeActivity | Transfer, arguments: TraceEvent) -> TraceEvent:
    start, end = _nanoseconds(span.start), _nanoseconds(span.end)
    return {
        "ph": "X", "name": name, "cat": "activity" if thread == _COMPUTE else "network", "pid": node, "tid": thread,
        "ts": start / 1e3, "dur": (end - start) / 1e3, "args": arguments,
    }  # fmt: skip


def _nanoseconds(seconds: float) -> int:
    """Whole nanoseconds, as in the viewer, so that touching spans still touch."""
    return round(seconds * 1e9)


def _names(node: int, out_rows: int, in_rows: int) -> Iterator[TraceEvent]:
    yield _metadata("process_name", node, 0, {"name": f"node {node}"})
    yield _metadata("process_sort_index", node, 0, {"sort_index": node})
    threads = [(_COMPUTE, "compute")]
    threads += [(_OUT + row, "network out") for row in range(out_rows)]
    threads += [(_IN + row, "network in") for row in range(in_rows)]
    for thread, name in threads:
        yield _metadata("thread_name", node, thread, {"name": name})
        yield _metadata("thread_sort_index", node, thread, {"sort_index": thread})


def _metadata(name: str, node: int, thread: int, arguments: TraceEvent) -> TraceEvent:
    return {"ph": "M", "name": name, "pid": node, "tid": thread, "args": arguments}


def _rows(transfers: Iterable[tuple[int, Transfer]]) -> list[list[tuple[int, Transfer]]]:
    """`transfers`, sorted by start, in as few rows without overlap as possible."""
    rows: list[list[tuple[int, Transfer]]] = []
    for number, transfer in transfers:
        start = _nanoseconds(transfer.start)
        row = next((row for row in rows if _nanoseconds(row[-1][1].end) <= start), None)
        if row is None:
            rows.append([(number, transfer)])
        else:
            row.append((number, transfer))
    return rows
