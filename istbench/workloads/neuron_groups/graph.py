"""Records the tensor operations of one run of a model: the graph on which neuron groups are found.

The recorder sees the operations below autograd (torch's dispatcher), as they run. So any Python code can stand
around them, and modules, functions and losses end in the same few operations.
"""

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from istbench.base.error_lines import shortened
from istbench.base.errors import UserError
from istbench.workloads.neuron_groups.groups import named_tensors

Run = Callable[[nn.Module], Tensor]
"""run(model): runs the model on an example batch; returns its outputs or its loss."""

_NO_MODELS = {Path(__file__).parent, Path(__file__).parents[2] / "launch", Path(torch.__file__).parent}
_LONGEST = 120  # of the reason of an error: several stand in a line
_READ = ("_local_scalar_dense", "equal", "nonzero", "masked_select")  # their results depend on values


@dataclass(eq=False)
class Value:
    """A tensor at one moment: before or after an operation that writes into it.

    Attributes:
        name: of a parameter or buffer of the model, else empty.
        maker: the operation that computed it; None for parameters, buffers and inputs.
    """

    shape: torch.Size
    name: str = ""
    maker: "Operation | None" = None


@dataclass(eq=False)
class Operation:
    """One operation: its name in torch's library, arguments with a `Value` for each tensor, and results.

    Attributes:
        args: all arguments in the order of torch's schema, also those by name and defaults.
        scope: names of the modules whose forward pass was running, the innermost last.
        pointwise: whether it computes each element from the elements at the same place.
        outputs: the results; aliases: new values of other tensors that share memory with one that it wrote into.
    """

    name: str
    args: tuple[Any, ...]
    scope: tuple[str, ...]
    pointwise: bool
    outputs: list[Value] = field(default_factory=list)
    aliases: list[tuple[Value, Value]] = field(default_factory=list)

    def inputs(self) -> list[Value]:
        """The tensors among the arguments."""
        return [leaf for leaf in tree_leaves(self.args) if isinstance(leaf, Value)]


@dataclass(frozen=True)
class OperationGraph:
    """The operations that the result of a run depends on, in their order.

    Attributes:
        values: the parameters and buffers that these operations read, by name.
        result: what the run returned.
        reads: by module name, the line where Python read values of tensors during its forward pass.
    """

    operations: list[Operation]
    values: Mapping[str, Value]
    result: Value
    reads: Mapping[str, str]

    def constants(self) -> set[Value]:
        """The values that depend on parameters, buffers and numbers in the code alone."""
        constant = set(self.values.values())
        for operation in self.operations:
            if constant.issuperset(operation.inputs()):
                constant.update(operation.outputs)
        return constant


def record_graph(model: nn.Module, run: Run) -> OperationGraph:
    """Run `model` once, as it is (mode, device), and record it; changes its buffers as any run does.

    Raises:
        TypeError: if `run` returns no tensor that the model computed.
    """
    recorder = _Recorder(model)
    with torch.no_grad(), recorder.scopes(model), recorder:
        result = run(model)
    if not isinstance(result, Tensor) or id(result) not in recorder.values:
        raise TypeError("run(model) must return a tensor that the model computes")
    return recorder.graph(recorder.values[id(result)])


def without_dropout(func: Any, args: tuple[Any, ...]) -> bool:
    """Replace the random 0 and 1 of a dropout by their mean, so that it changes nothing; whether `func` is one."""
    if func is not torch.ops.aten.bernoulli_.float:
        return False
    args[0].fill_(args[1] if len(args) > 1 else 0.5)
    return True


class _Recorder(TorchDispatchMode):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.values: dict[int, Value] = {}
        self._tensors: list[Tensor] = []  # kept, so that no other tensor gets their identity
        self._sharing: dict[int, list[Tensor]] = {}
        self._operations: list[Operation] = []
        self._reads: dict[str, str] = {}
        self._scope: list[str] = []
        self._kinds = {name: type(module) for name, module in model.named_modules()}
        for name, tensor in named_tensors(model).items():
            self._add(tensor, Value(tensor.shape, name))

    @contextmanager
    def scopes(self, model: nn.Module) -> Iterator[None]:
        """Inside, the recorder knows whose forward pass runs."""
        hooks = []
        for name, module in model.named_modules():
            hooks.append(module.register_forward_pre_hook(lambda *_, name=name: self._scope.append(name)))
            hooks.append(module.register_forward_hook(lambda *_: self._leave()))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _leave(self) -> None:
        self._scope.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = args[0] if without_dropout(func, args) else func(*args, **kwargs)
        self._record(func, args, kwargs, output)
        return output

    def _record(self, func: Any, args: Any, kwargs: Any, output: Any) -> None:
        name = func.overloadpacket.__name__
        others = func._schema.arguments[len(args) :]
        args = (*args, *(kwargs.get(other.name, other.default_value) for other in others))
        args = tree_map_only(Tensor, self._value, args)
        operation = Operation(name, args, tuple(self._scope), torch.Tag.pointwise in func.tags)
        self._operations.append(operation)
        if name in _READ and any(value.maker for value in operation.inputs()):
            self._note_read()
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor):
                written = id(tensor) in self.values
                new = Value(tensor.shape, maker=operation)
                operation.outputs.append(new)
                if written:
                    self._note_aliases(tensor, operation)
                self._add(tensor, new)

    def _note_aliases(self, written: Tensor, operation: Operation) -> None:
        """Give new values to the tensors that share memory with `written`."""
        for tensor in self._sharing[written.untyped_storage()._cdata]:
            if tensor is not written:
                old = self.values[id(tensor)]
                new = Value(old.shape, maker=operation)
                operation.aliases.append((old, new))
                self.values[id(tensor)] = new

    def _note_read(self) -> None:
        """Note the innermost module outside torch whose forward pass runs, and the line."""
        for name in reversed(self._scope):
            if not self._kinds[name].__module__.startswith("torch.nn."):
                self._reads.setdefault(name, _place(traceback.extract_stack()))
                return

    def _value(self, tensor: Tensor) -> Value:
        if id(tensor) not in self.values:
            self._add(tensor, Value(tensor.shape))
        return self.values[id(tensor)]

    def _add(self, tensor: Tensor, value: Value) -> None:
        if id(tensor) not in self.values:
            self._tensors.append(tensor)
            self._sharing.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
        self.values[id(tensor)] = value

    def graph(self, result: Value) -> OperationGraph:
        """The operations that `result` depends on."""
        live, used = {result}, []
        for operation in reversed(self._operations):
            if any(value in live for value in (*operation.outputs, *(new for _, new in operation.aliases))):
                live.update(operation.inputs())
                live.update(old for old, _ in operation.aliases)
                used.append(operation)
        named = {value.name: value for value in live if value.name}
        return OperationGraph(used[::-1], named, result, self._reads)


def first_line(error: Exception) -> str:
    """The first line of the message of `error`, behind the innermost line of the user's code."""
    text = shortened((str(error).strip() or type(error).__name__).splitlines()[0].rstrip("."), _LONGEST)
    place = "" if isinstance(error, UserError) else _place(traceback.extract_tb(error.__traceback__))
    return f"{place}: {text}" if place else text


def _place(stack: traceback.StackSummary) -> str:
    """The innermost line of `stack` that is neither torch's nor this package's."""
    for frame in reversed(stack):
        path = Path(frame.filename)
        if path.is_file() and _NO_MODELS.isdisjoint(path.parents):
            return f"{path.name}:{frame.lineno}"
    return ""
