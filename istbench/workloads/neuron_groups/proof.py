"""Proofs of neuron groups: another order of units changes nothing, and a subnet computes the masked network.

Both compare runs of a model with random weights and buffers, in training and in evaluation mode, without dropout
and in float64. Another order of sums moves a result by about 1e-13 of its size, and by up to a million times as
much where a deep network amplifies it. A unit in the wrong place moves it by about the share of that unit, far more
than `_NEAR`.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from istbench.workloads.neuron_groups.graph import Run, first_line, without_dropout
from istbench.workloads.neuron_groups.groups import NeuronGroup, expand_units, named_tensors, permute_units
from istbench.workloads.neuron_groups.layout import build_subnet, part_of_subnet
from istbench.workloads.neuron_groups.partition import Partition, partition_units, units_on

_NEAR = 1e-7
_SEED = 0
_LOWER = (torch.float32, torch.float16, torch.bfloat16)


class Proof:
    """Tries groups on a copy of `model` with random weights.

    Raises:
        ValueError: if two runs of the same model differ, or a run gives no finite number.
    """

    def __init__(self, model: nn.Module, run: Run) -> None:
        self._run = run
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            self._model = random_values(copy.deepcopy(model).double())
        self._expected = self._results(copy.deepcopy(self._model))
        if not _finite(self._expected):
            raise ValueError("with random weights, the model gives no finite number")
        if _distance(self._result(self._model, training=False), self._expected[0]) is not None:
            raise ValueError("two runs of the same model give different results")

    def order(self, groups: Sequence[NeuronGroup]) -> str:
        """Change the order of the units of every one of `groups`; returns the change of the result, or nothing."""
        model = copy.deepcopy(self._model)
        generator = torch.Generator().manual_seed(_SEED)
        for group in groups:
            units = torch.randperm(group.size, generator=generator)
            order = torch.empty_like(units).index_copy_(0, units, units.roll(1))  # every unit moves
            permute_units(model, group, order)
        difference = _difference(self._results(model), self._expected)
        return "" if difference is None else f"another order of its units changes the result by {difference:.1e}"

    def cut(self, groups: Sequence[NeuronGroup]) -> str:
        """Cut the model to about half of the units of `groups`, with the code of IST; returns the problem.

        The subnet must run forward and backward, and compute the full model with zeros for the other units. If sums
        over the units are scaled, the weights of these sums in the full model are too.
        """
        partition = partition_units(groups, 2, seed=_SEED, round_index=0)
        subnet = build_subnet(self._model, groups, units_on(0, partition), torch.device("cpu"))
        part = named_tensors(subnet)
        with torch.no_grad():
            for name, tensor in named_tensors(self._model).items():
                part[name].copy_(part_of_subnet(name, tensor, groups, partition, 0))
        try:
            results = self._results(subnet, backward=True)
        except Exception as error:
            return f"a subnet with some of its units fails: {first_line(error)}"
        wanted = self._results(self._masked(groups, partition))
        if not _finite(wanted):  # a unit divides by its own weight: without its column it counts for nothing too
            wanted = self._results(self._masked(groups, partition, matrices=True))
        difference = _difference(results, wanted)
        if difference is not None:
            return f"a subnet with some of its units differs by {difference:.1e} from the masked network"
        if any(self._ignores(group, part, partition) for group in groups):
            return "the result does not depend on its units"
        return ""

    def silence(self, groups: Sequence[NeuronGroup]) -> str:
        """Set about half of the units of `groups` to zero; returns the problem if the result is not finite."""
        partition = partition_units(groups, 2, seed=_SEED, round_index=0)
        if _finite(self._results(self._masked(groups, partition))):
            return ""
        return "units whose weights are zero give no finite number"

    def _masked(self, groups: Sequence[NeuronGroup], partition: Partition, *, matrices: bool = False) -> nn.Module:
        """The full model with zeros for the units that the first node lacks, and with larger weights of sums.

        matrices: whether only the tensors of two dimensions or more get zeros.
        """
        masked, factors = copy.deepcopy(self._model), dict[str, float]()
        values = named_tensors(masked)
        for group in groups:
            mine, others = partition[group.name].units
            with torch.no_grad():
                for slot in group.slots:
                    if matrices and values[slot.tensor].dim() < 2:
                        continue
                    index = expand_units(others, slot.block, slot.segments, group.size)
                    values[slot.tensor].index_fill_(slot.dim, index, 0)
            factors |= dict.fromkeys(group.sums, group.size / len(mine))
        _weigh(masked, factors)
        return masked

    def _ignores(self, group: NeuronGroup, part: Mapping[str, Tensor], partition: Partition) -> bool:
        """Whether the result does not depend on the units of `group`; `part` has gradients of a subnet.

        Frozen units have none: then those of the full model are masked.
        """
        gradients = [part[slot.tensor].grad for slot in group.slots]
        if any(gradient is not None and bool(gradient.any()) for gradient in gradients):
            return False
        return _difference(self._results(self._masked([group], partition)), self._expected) is None

    def _results(self, model: nn.Module, *, backward: bool = False) -> list[Tensor]:
        """What a run gives in evaluation and then in training, which changes the buffers of `model`."""
        return [self._result(model, training=False), self._result(model, training=True, backward=backward)]

    def _result(self, model: nn.Module, *, training: bool, backward: bool = False) -> Tensor:
        gradients = torch.enable_grad() if backward else torch.no_grad()
        with torch.random.fork_rng(devices=[]), gradients, _plain_attention(), _float64():
            torch.manual_seed(_SEED)
            result = self._run(model.train(training))
            if result.requires_grad:
                result.sum().backward()
        return result.detach().double()


def _weigh(model: nn.Module, factors: Mapping[str, float]) -> None:
    """Multiply parameters by `factors`, by name, while `model` runs: a penalty of the weights does not see them."""
    places: list[tuple[dict[str, Any], str, Tensor]] = []
    for name, factor in factors.items():
        owner, _, short = name.rpartition(".")
        places.append((vars(model.get_submodule(owner)), short, model.get_parameter(name) * factor))

    def enter(*_: Any) -> None:
        for attributes, short, larger in places:
            attributes[short] = larger  # an attribute of the module hides the parameter of its name

    def leave(*_: Any) -> None:
        for attributes, short, _larger in places:
            del attributes[short]

    model.register_forward_pre_hook(enter)
    model.register_forward_hook(leave, always_call=True)


def failing(groups: Sequence[NeuronGroup], problem: Callable[[Sequence[NeuronGroup]], str]) -> dict[str, str]:
    """Groups to leave out so that the others have no `problem` together: by name, the problem of each."""
    found = problem(groups) if groups else ""
    if not found or len(groups) == 1:
        return {group.name: found for group in groups if found}
    middle = len(groups) // 2
    first, last = groups[:middle], groups[middle:]
    # If each half is right alone, the halves do not fit each other: leave out one.
    return failing(first, problem) | failing(last, problem) or {group.name: found for group in last}


def _finite(results: Sequence[Tensor]) -> bool:
    return all(bool(torch.isfinite(result).all()) for result in results)


def _difference(results: Sequence[Tensor], expected: Sequence[Tensor]) -> float | None:
    """The first distance between `results` and those `expected` that is not near zero; None if all are."""
    found = (_distance(result, own) for result, own in zip(results, expected, strict=True))
    return next((distance for distance in found if distance is not None), None)


def _distance(result: Tensor, expected: Tensor) -> float | None:
    """The largest difference over the largest expected value; None if it is near zero."""
    if result.shape != expected.shape:
        return math.inf
    if not result.numel():
        return None
    distance = float((result - expected).abs().max() / expected.abs().max().clamp(min=1e-30))
    return None if distance <= _NEAR else distance


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Inside, evaluation of torch's transformers takes the operations of training."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def _float64() -> Iterator[None]:
    """Inside, everything is computed in float64, whatever precision the code asks for, and without dropout."""
    made: dict[int, tuple[Tensor, Tensor]] = {}  # of one tensor, always the same copy

    def widened(value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return torch.float64 if value in _LOWER else value
        if value.dtype not in _LOWER:
            return value
        if id(value) not in made:
            made[id(value)] = value, value.double()
        return made[id(value)][1]

    class Functions(TorchFunctionMode):
        """Torch's functions, some of which check precisions."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            args, kwargs = tree_map_only((Tensor, torch.dtype), widened, (args, kwargs or {}))
            return func(*args, **kwargs)

    class Operations(TorchDispatchMode):
        """The operations below them, also on tensors that the functions make."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            args, kwargs = tree_map_only((Tensor, torch.dtype), widened, (args, kwargs or {}))
            return args[0] if without_dropout(func, args) else func(*args, **kwargs)

    with Operations(), Functions():
        yield


@torch.no_grad()
def random_values(model: nn.Module) -> nn.Module:
    """Give every parameter and floating-point buffer of `model` other random values, of a similar size."""
    parameters = {name for name, _ in model.named_parameters()}
    for name, tensor in named_tensors(model).items():
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        if not torch.isfinite(tensor).all() or (tensor > 0).all():
            tensor.mul_(torch.empty_like(tensor).uniform_(0.5, 1.5))
        elif name in parameters and tensor.dim() > 1:
            tensor.normal_(std=math.sqrt(2 * tensor.shape[0] / tensor.numel()))
        else:
            negative = bool((tensor < 0).any()) or not tensor.any()
            tensor.add_(torch.empty_like(tensor).normal_(std=0.3))
            if not negative:
                tensor.abs_()  # the variance of a unit that is always 0 stays at least 0
    return model
