"""A proof that a method trains the model that a task file built, and not another one of the same named values.

A torch module is more than its named values: hooks, attributes of parameters, tensors that share memory, closures
and plain lists. `ddp` trains the user's object as it is. Methods that move its tensors, or build it again from its
named values, may lose the rest. So the user's own object and that of the method take the same two batches, with a
step of gradient descent between them. Their losses and gradients must agree.
"""

import copy
import functools
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from istbench.base.error_lines import reason_of
from istbench.base.errors import UserError
from istbench.methods.base import Method, filled
from istbench.methods.flat import floating_tensors
from istbench.methods.wide_layers import is_compiled
from istbench.node.checkpoint import random_state_kept, seed_random_state
from istbench.workloads.base import Batch
from istbench.workloads.neuron_groups.groups import named_tensors
from istbench.workloads.task import TaskWorkload

_CPU = torch.device("cpu")
_NEAR = 1e-4  # of the largest value: sums in another order differ by less
_SMALL = 1e-2  # of the largest gradient: a gradient far below it is mostly rounding
_MOVE = 0.01  # the step changes a parameter by this part of its norm
_LEAST_SIZE = 1e-3  # of an element, for parameters that begin at zero
_KEPT = "ddp trains the object as it is"
_DONE = {
    "moved": "moves its tensors",
    "copied": "moves its tensors and evaluates copies of it",
    "rebuilt": "builds it again from its named values",
    "gathered": "builds it again from its named values, and gathers copies of them for each step",
}
_CHANGE, _MEMORY = "change in forward of ", "memory of "

Result = tuple[str, Tensor | None]
"""The name of a loss or gradient, and its value."""


def prove_model(task: TaskWorkload, method: type[Method], nodes: int = 1) -> None:
    """Compare the model that `method` trains on `nodes` with the user's own object, unless it keeps that object.

    Raises:
        UserError: they differ; the message names the first difference and what caused it. Or some minibatch gives a
            parameter no gradient, and `method` needs all. Or torch compiled a part of a model that it interrupts.
            Or nodes that average gradients alone would change their weights apart, by `max_norm`, or the mean of a
            buffer of those that average values would overflow.
    """
    if nodes > 1 and method.unequal == "gradients" and (rows := _renormed(task.own_model(0))):
        raise UserError(
            f"{task.in_errors}: {rows} has max_norm, so forward changes the rows that its minibatch names, and "
            f"nodes of {method.name} would train different models; leave max_norm out, or use local_sgd"
        )
    if nodes > 1 and method.unequal != "gradients" and (name := _too_large(task.own_model(0), nodes)):
        raise UserError(
            f"{task.in_errors}: buffer {name} has values of which {nodes} nodes can make no mean, as their sum "
            f"overflows; use smaller ones, such as -1e9 for a mask, or train by ddp"
        )
    if method.all_gradients and (idle := task.idle_parameters()):
        raise UserError(
            f"{task.in_errors}: {method.name} needs a gradient for every parameter, but a minibatch gave none to "
            f"{idle[0]}; use ddp"
        )
    if method.interrupts and any(map(is_compiled, task.own_model(0).modules())):
        raise UserError(
            f"{task.in_errors}: {method.name} {method.interrupts}, so torch cannot compile it; return the model "
            "before torch.compile, or use ddp"
        )
    if method.own_object == "kept":
        return
    with random_state_kept():
        problem = _problem(task, method.own_object, apart=nodes > 1 and method.unequal != "gradients")
    if problem:
        raise UserError(
            f"{task.in_errors}: {method.name} would train another model than model() returns: {problem}. "
            f"{method.name} {_DONE[method.own_object]}; {_KEPT}"
        )


def _renormed(model: nn.Module) -> str:
    """The name of the first embedding of `model` with a largest norm; empty if there is none."""
    embeddings = (nn.Embedding, nn.EmbeddingBag)
    named = model.named_modules()
    found = (name for name, own in named if isinstance(own, embeddings) and own.max_norm is not None)
    return next(found, "")


def _too_large(model: nn.Module, nodes: int) -> str:
    """The name of the first buffer of `model` whose sum over `nodes` overflows; empty if there is none."""
    named = ((name, own) for name, own in model.named_buffers() if own.is_floating_point())
    found = (name for name, own in named if (own.isfinite() & (own * float(nodes)).isinf()).any())
    return next(found, "")


@functools.cache  # `istbench check` proves method after method
def _problem(task: TaskWorkload, own_object: str, *, apart: bool) -> str:
    """The first difference between both models, in words; empty if there is none.

    apart: nodes train different models, and average what trains and buffers.
    """
    # One object after the other: a function that reads a global sees the object that was built last.
    # Finding a batch may run the model, which changes its statistics.
    batches = [task.example_batch(task.own_model(0), number) for number in range(2)]
    expected = dict(_course(task, task.own_model(0), batches))
    frozen = {name for name, own in task.own_model(0).named_parameters() if not own.requires_grad}
    if lost := _lost(expected, own_object, frozen if apart else set()):
        return lost
    rebuilt = own_object in ("rebuilt", "gathered")
    try:
        other = _rebuilt(task) if rebuilt else _moved(task.own_model(0))
        difference = _difference(expected, _course(task, other, batches))
        if not difference and own_object == "copied":
            difference = _copied_otherwise(task, other, batches[0])
        if not difference and rebuilt:
            return _named_otherwise(task, other, batches[0])
    except Exception as error:
        return reason_of(error)
    if difference and _difference(expected, _course(task, task.own_model(0), batches)):
        return "its loss differs between two calls on the same weights and batch, so nothing is proved"
    name = difference.partition("gradient of ")[2]
    return f"{difference}{_cause(task.own_model(0), name)}" if difference else ""


def _lost(course: Mapping[str, Tensor | None], own_object: str, frozen: set[str]) -> str:
    """The first change of a parameter in a forward pass that a method would lose, in words; empty without one."""
    for name, value in course.items():
        own = name.partition(_MEMORY)[2]
        if own and value:
            return f"forward gives {own} other memory; change its values in place, by copy_ or mul_"
        own = name.partition(_CHANGE)[2]
        if own and value and own_object == "gathered":
            return f"forward changes the values of {own}"
        if own in frozen and value:
            return f"forward changes the frozen {own}, which nodes do not average; make it a buffer"
    return ""


def _moved(model: nn.Module) -> nn.Module:
    """`model`, with its tensors in other memory, each aligned as before: they round as before."""
    for tensor in floating_tensors(model):
        tensor.data = tensor.detach().clone()
    return model


def _rebuilt(task: TaskWorkload) -> nn.Module:
    with torch.device("meta"):
        blank = task.build_model()
    return filled(blank, task, 0, _CPU)


def _course(task: TaskWorkload, model: nn.Module, batches: list[Batch]) -> Iterator[Result]:
    """Losses and gradients of `model` on `batches` in turn, with a step after each, and a loss in evaluation."""
    with task.state_kept():  # a counter begins alike for every model
        model.train()
        for number, batch in enumerate(batches, start=1):
            before = _parameters(model)
            try:
                loss = _backward(task, model, number, batch)
            except Exception:  # the step may lead where the user's code refuses to compute
                if number == 1:
                    raise
                return
            yield f"loss {number}", loss
            for name, (own, memory, total) in _parameters(model).items():
                yield f"{number}: {_CHANGE}{name}", total - before[name][2]
                moved = own.requires_grad and memory != before[name][1]
                yield f"{number}: {_MEMORY}{name}", torch.tensor(float(moved))
            for name, parameter in model.named_parameters(remove_duplicate=False):
                gradient = parameter.grad
                yield f"{number}: gradient of {name}", None if gradient is None else gradient.detach()
            _descend(model)
        yield "loss in evaluation", _evaluated(task, model, batches[0])


def _parameters(model: nn.Module) -> dict[str, tuple[Tensor, int, Tensor]]:
    """The parameters of `model`, the place of their memory, and the sum of their values."""
    return {
        name: (own, own.data_ptr(), own.detach().sum(dtype=torch.float64)) for name, own in model.named_parameters()
    }


def _backward(task: TaskWorkload, model: nn.Module, number: int, batch: Batch) -> Tensor:
    """The loss of `model` on `batch`; its parameters get new gradients."""
    seed_random_state(number)
    model.zero_grad()
    loss = task.loss(model, copy.deepcopy(batch))
    loss.backward()
    return loss.detach()


@torch.no_grad()
def _evaluated(task: TaskWorkload, model: nn.Module, batch: Batch) -> Tensor:
    """The loss of `model` in evaluation. The state of the user's code stays."""
    seed_random_state(0)
    model.eval()
    with task.state_kept():
        try:
            return task.loss(model, copy.deepcopy(batch))
        except Exception:  # a detector has no loss in evaluation
            return torch.zeros(())


@torch.no_grad()
def _descend(model: nn.Module) -> None:
    """Take a step down the gradient that changes each parameter by a part of its own size."""
    for own in model.parameters():
        if own.grad is not None:
            gradient = own.grad
            size = max(float(own.norm()), _LEAST_SIZE * own.numel() ** 0.5)
            length = float(gradient.norm())
            if 0 < length < float("inf"):
                own.sub_(gradient, alpha=_MOVE * size / length)


@torch.no_grad()
def _copied_otherwise(task: TaskWorkload, model: nn.Module, batch: Batch) -> str:
    """The way in which a copy of `model` is not the model, in words; empty if it is."""
    copied = copy.deepcopy(model)
    before = _evaluated(task, copied, batch)
    if not _agree(_evaluated(task, model, batch), before, 0.0):
        return "a copy of it has another loss"
    for tensor in floating_tensors(model):
        tensor.mul_(1 + _MOVE)
    alike = _agree(before, _evaluated(task, copied, batch), 0.0)
    return "" if alike else "a copy of it reads tensors of the original"


@torch.no_grad()
def _named_otherwise(task: TaskWorkload, model: nn.Module, batch: Batch) -> str:
    """The way in which the named values of the trained `model` are not the model, in words; empty if they are."""
    again, own = _rebuilt(task), named_tensors(model)
    for name, tensor in named_tensors(again).items():
        if name not in own or own[name].shape != tensor.shape:
            return f"forward changes the shape of buffer {name}"
        tensor.copy_(own.pop(name))
    if own:
        return f"forward makes buffer {next(iter(own))}"
    if _agree(_evaluated(task, model, batch), _evaluated(task, again, batch), 0.0):
        return ""
    return f"its named values have another loss after training{_changed_attribute(model, again)}; use a buffer"


def _changed_attribute(model: nn.Module, again: nn.Module) -> str:
    """The first attribute that differs between both, in words after a comma."""
    for (name, one), other in zip(model.named_modules(), again.modules(), strict=True):
        for attribute, value in vars(one).items():
            known = isinstance(value, bool | int | float | str | list | Tensor) and attribute != "training"
            if known and repr(value) != repr(vars(other).get(attribute)):
                return f", because of the attribute {f'{name}.' if name else ''}{attribute}"
    return ", because forward keeps something that is no parameter and no buffer"


def _difference(expected: Mapping[str, Tensor | None], found: Iterable[Result]) -> str:
    """The first of the `expected` results that is not among those `found`, in words; empty if they agree."""
    sizes = [
        float(value.abs().max())
        for name, value in expected.items()
        if _CHANGE not in name and value is not None and value.numel()
    ]
    largest = max((size for size in sizes if size < float("inf")), default=0.0)
    missing = dict(expected)
    for name, other in found:
        value = missing.pop(name, other)
        if (value is None) != (other is None) or (
            value is not None and other is not None and not _agree(value, other, _SMALL * largest)
        ):
            return _worded(name)
    return next((_worded(name) for name, value in missing.items() if value is not None), "")


def _worded(name: str) -> str:
    step, _, what = name.rpartition(": ")
    return f"after one step the {what}" if step == "2" or name == "loss 2" else f"the {what}"


def _agree(one: Tensor, other: Tensor, least: float) -> bool:
    if one.shape != other.shape:
        return False
    if not one.numel():
        return True
    if not bool((one.isfinite() == other.isfinite()).all()):
        return False
    one, other = one[one.isfinite()], other[other.isfinite()]
    scale = max(float(one.abs().max()) if one.numel() else 0.0, least)
    return torch.allclose(one, other, rtol=0.0, atol=_NEAR * scale)


def _cause(model: nn.Module, name: str) -> str:
    """What belongs to the parameters of `model`, first to `name`, beside their values: in words after a comma."""
    unknown = "something reads its tensors past the module: a closure, a list or a view"
    return f", because {next(_causes(model, name), unknown)}"


def _causes(model: nn.Module, name: str) -> Iterator[str]:
    parameters = sorted(model.named_parameters(remove_duplicate=False), key=lambda own: own[0] != name)
    for own, parameter in parameters:
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            yield f"of a hook on {own}"
    places: dict[int, tuple[str, Tensor]] = {}
    for own, tensor in (*parameters, *model.named_buffers()):
        if tensor.layout == torch.strided and tensor.numel():
            first, other = places.setdefault(tensor.untyped_storage().data_ptr(), (own, tensor))
            if other is not tensor:
                yield f"of memory that {first} and {own} share; tie modules by assignment of the parameter itself"
    for own, parameter in parameters:
        for attribute in vars(parameter):
            yield f"of the attribute {attribute} of {own}"
