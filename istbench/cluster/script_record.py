"""A recorded training script: the sizes of its model, and the times inside one of its steps.

`istbench record` writes the file. It holds no events of messages, because one process trained alone. The plan of a
method gives the messages on any number of nodes (istbench/plan/script_trace.py).
"""

import math
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from istbench.base.decode import decode_json, read_bytes
from istbench.base.errors import UserError, shown
from istbench.base.files import write_errors, writing_whole
from istbench.base.options.numbers import Count, Duration, Natural, Seconds
from istbench.cluster.trace import TraceMeta

SCRIPT_VERSION = 1
LEAST_STEPS = 8
"""Optimizer steps of the shortest recording."""
LONGEST_TEXT, MOST_ARGUMENTS = 4096, 10_000
"""Characters of a text, and arguments of a script, that a record holds at most."""

_WAY_OUT = "record it again with `istbench record`"
_MOST_BYTES = 2**26
_MOST_MODEL_BYTES = 2**50
_NEARLY = 1 + 1e-6  # sums of floats

_Name = Annotated[str, Meta(max_length=500)]
_Text = Annotated[str, Meta(max_length=LONGEST_TEXT)]
_Dimension = Annotated[int, Meta(ge=0, le=2**45)]
_Shape = Annotated[tuple[_Dimension, ...], Meta(max_length=32)]
DType = Literal["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]
ITEM_BYTES: dict[str, int] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint8": 1, "bool": 1,
}  # fmt: skip


FLOATS = ("float64", "float32", "float16", "bfloat16")
"""Types of parameters that can have a gradient."""


class RecordedTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor of the model.

    Attributes:
        names: in the model, such as `layers.0.weight`; several for a shared tensor.
    """

    names: Annotated[tuple[_Name, ...], Meta(min_length=1, max_length=1000)]
    shape: _Shape
    dtype: DType

    @property
    def values(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.values * ITEM_BYTES[self.dtype]


class RecordedParameter(RecordedTensor, frozen=True, kw_only=True):
    """A parameter of the model.

    Attributes:
        place: its number in the order of the model, from 0.
        trained: whether it needs a gradient.
        used_s: seconds from the start of a step to its first use in a forward pass. ready_s: to its complete
            gradient. None if the step never used it, or if that was not seen.
    """

    place: Natural
    trained: bool = True
    used_s: Duration | None = None
    ready_s: Duration | None = None


class RecordedModule(msgspec.Struct, frozen=True, kw_only=True):
    """A module of the model by its name; "" is the model. container: a Sequential, ModuleList or ModuleDict."""

    name: _Name
    container: bool = False


class ScriptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a training script in a step.

    Attributes:
        version: of this format.
        script: its file name, or a word for another source. arguments: its own, the longest cut.
        step_s: seconds from the end of one optimizer step to the end of the next, the median of `samples_s`.
        update_s: the part of them that optimizers take. before_update_s: from the last gradient to their start.
        parameters: in the order in which their gradients become ready.
        buffers, modules: in the order of the model.
        backward_passes: before an optimizer step.
        optimizers: their classes. state_tensors: tensors of its own shape that they keep for a parameter.
        state_bytes: of all that they keep.
        resident_bytes: peak growth of the process's memory during the steps. allocated_bytes: of a GPU's
            allocator. memory_bytes: of the machine, or of its GPU. None if unknown.
        clips: whether the script scales all gradients by their norm, after the last of them.
        machine: figures of the recording machine, and the work of a step, as in a trace of one node.
        environment: versions and names. notes: what a reader should know, a sentence each.
    """

    version: int = SCRIPT_VERSION
    script: _Text
    arguments: Annotated[tuple[_Text, ...], Meta(max_length=MOST_ARGUMENTS)] = ()
    step_s: Seconds
    samples_s: Annotated[tuple[Seconds, ...], Meta(min_length=1, max_length=1_000_000)]
    update_s: Duration
    before_update_s: Duration
    parameters: Annotated[tuple[RecordedParameter, ...], Meta(min_length=1, max_length=200_000)]
    buffers: Annotated[tuple[RecordedTensor, ...], Meta(max_length=200_000)] = ()
    modules: Annotated[tuple[RecordedModule, ...], Meta(max_length=200_000)] = ()
    backward_passes: Count = 1
    optimizers: Annotated[tuple[_Name, ...], Meta(max_length=1000)] = ()
    state_tensors: Annotated[int, Meta(ge=0, le=100)] = 0
    state_bytes: Natural = 0
    resident_bytes: Natural | None = None
    allocated_bytes: Natural | None = None
    memory_bytes: Natural | None = None
    clips: bool = False
    machine: TraceMeta
    environment: Annotated[dict[_Name, _Text], Meta(max_length=100)] = {}
    notes: Annotated[tuple[_Text, ...], Meta(max_length=100)] = ()

    @property
    def peak_bytes(self) -> int | None:
        """Peak memory where the model lies: of the GPU's allocator, or of the process."""
        return self.resident_bytes if self.allocated_bytes is None else self.allocated_bytes

    @property
    def model_bytes(self) -> int:
        """Bytes of parameters and buffers."""
        return sum(tensor.bytes for tensor in (*self.parameters, *self.buffers))

    @property
    def gradient_bytes(self) -> int:
        return sum(parameter.bytes for parameter in self.parameters if parameter.trained)


def save_script(record: ScriptRecord, path: Path) -> None:
    """Write `record` to `path` as JSON, completely or not at all.

    Raises:
        UserError: if the file cannot be written.
    """
    content = msgspec.json.format(msgspec.json.encode(record), indent=1)
    with write_errors(path), writing_whole(path) as file:
        file.write(content + b"\n")


def load_script(path: Path) -> ScriptRecord:
    """The record in `path`.

    Raises:
        UserError: for a file that is missing, not such a record, or of another version, or whose parts do not fit
            together; one line with the file and the way out.
    """
    content = read_bytes(path, "a file of `istbench record`", _MOST_BYTES)
    if path.suffix == ".py":
        raise UserError(f"{path} is a script; `istbench record {path}` makes a record of it")
    version = decode_json(content, _Version, str(path), _WAY_OUT).version
    if version != SCRIPT_VERSION:
        raise UserError(
            f"{path} is a recorded script of version {shown(version)}, this istbench reads {SCRIPT_VERSION}; "
            f"{_WAY_OUT}"
        )
    record = decode_json(content, ScriptRecord, str(path), _WAY_OUT)
    found = _problem(record)
    if found:
        raise UserError(f"{path}: {found}; {_WAY_OUT}")
    return record


class _Version(msgspec.Struct):
    version: int


def _problem(record: ScriptRecord) -> str | None:
    """The reason why the parts of `record` do not fit together; None if they do."""
    if sorted(parameter.place for parameter in record.parameters) != list(range(len(record.parameters))):
        return "the places of its parameters are not 0, 1, 2 and so on"
    if not any(parameter.trained for parameter in record.parameters):
        return "it trains no parameter"
    integer = next((own for own in record.parameters if own.trained and own.dtype not in FLOATS), None)
    if integer is not None:
        return f"its parameter {shown(integer.names[0])} of type {integer.dtype} cannot have a gradient"
    tensors = (*record.parameters, *record.buffers)
    if sum(8 * math.prod(max(1, size) for size in tensor.shape) for tensor in tensors) > _MOST_MODEL_BYTES:
        return "its model has more bytes than any machine"
    names = [name for tensor in tensors for name in tensor.names]
    if len(set(names)) < len(names):
        return "two of its tensors have the same name"
    if record.update_s + record.before_update_s > record.step_s * _NEARLY:
        return "its update takes longer than its step"
    if record.machine.gflops is None:
        return "it lacks the speed of the machine that recorded it"
    return None
