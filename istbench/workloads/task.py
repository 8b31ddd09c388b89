"""A workload from a user's file of functions: a model, data that yields batches, and a loss (docs/your-model.md).

The user's functions know no meta device, no indices and no nodes. Initial weights are those of the user's own
constructors under the seed.
"""

import copy
import functools
import hashlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from istbench.base.error_lines import TASK_FILE, during, error_line, reason_of
from istbench.base.errors import UserError, lacks_memory, shown
from istbench.base.options.data_source import DataSource
from istbench.base.options.task_file import task_name
from istbench.base.plugin_code import users_code
from istbench.workloads.base import Batch, ShowProgress, Workload
from istbench.workloads.module_state import plain_attributes
from istbench.workloads.neuron_groups.discovery import Discovered, discover_groups
from istbench.workloads.neuron_groups.groups import NeuronGroup, Slot, misfit, named_tensors
from istbench.workloads.neuron_groups.proof import Proof, failing
from istbench.workloads.task_batches import Split, Stream, as_batch, kind_of, mapped, split_of
from istbench.workloads.task_file import TaskFile
from istbench.workloads.task_model import TaskModel
from istbench.workloads.task_state import state_kept

_WITHOUT_GRAPH = "does not require grad"  # the error of torch.autograd.grad under no_grad
_PLAIN = (bool, int, float, str, type(None), Tensor)


def own_optimizer(file: TaskFile, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """What `optimizer(parameters)` of `file` returns.

    Raises:
        UserError: if it is no torch optimizer over these parameters, or other code changes its steps.
    """
    found: Any = file.call("optimizer", parameters)
    if not isinstance(found, torch.optim.Optimizer):
        what = kind_of(found)
        raise file.wrong(
            "optimizer",
            f"returns {what}; it should return a torch.optim.Optimizer alone; for a "
            "learning-rate schedule, use --set schedule=cosine",
        )
    if any("initial_lr" in group for group in found.param_groups):
        raise file.wrong(
            "optimizer",
            "has a learning-rate scheduler, which istbench cannot step as often as "
            "a method takes local steps; leave it out, and use --set schedule=cosine",
        )
    if "step" in vars(found) or found._optimizer_step_pre_hooks or found._optimizer_step_post_hooks:
        raise file.wrong("optimizer", "its step is wrapped by other code; return the torch optimizer as it is")
    if isinstance(found, torch.optim.LBFGS):
        raise file.wrong("optimizer", "LBFGS computes the loss several times in a step; use another optimizer")
    if isinstance(found, torch.optim.SparseAdam):
        raise file.wrong(
            "optimizer",
            "SparseAdam takes sparse gradients alone, and those of embeddings are dense here; use torch.optim.Adam",
        )
    own = {id(own) for group in found.param_groups for own in group["params"]}
    trained = {id(parameter) for parameter in parameters if parameter.requires_grad}
    if not trained <= own <= {id(parameter) for parameter in parameters}:
        raise file.wrong(
            "optimizer",
            f"trains {len(own)} tensors, not the {len(trained)} parameters; it should train those that it is given",
        )
    _check_plain(
        file, {key: value for group in found.param_groups for key, value in group.items() if key != "params"}
    )
    return found


def _check_plain(file: TaskFile, values: Any) -> None:
    """Check that a checkpoint can hold these `values` of an optimizer: tensors, numbers and texts."""
    for key, value in values.items():
        parts = value if isinstance(value, list | tuple) else [value]
        if not all(isinstance(part, _PLAIN) for part in parts):
            raise file.wrong(
                "optimizer",
                f"keeps {key!r} as a {type(value).__name__}, which a checkpoint cannot hold; "
                "use an optimizer that keeps tensors and numbers",
            )


_EXAMPLE = 8
_LEAST_EXAMPLE = 2  # BatchNorm in training needs two samples
_REASONS = 3


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """A task file has no options: its user edits the file."""


class TrialFindings(NamedTuple):
    """The findings of a trial of a task file on two batches.

    idle: parameters that get no gradient from one of them. unsaved: attributes of modules that a forward pass
        changes, and that no checkpoint holds.
    """

    idle: list[str]
    unsaved: list[str]


@dataclass(kw_only=True)
class _Known:
    """Findings on a task file, which a process makes once.

    proved: by groups, the line on their proof. differentiates: whether the loss calls torch.autograd.grad.
    """

    splits: dict[bool, Split] = field(default_factory=dict)
    found: Discovered | None = None
    proved: dict[str, str] = field(default_factory=dict)
    trial: TrialFindings | None = None
    differentiates: bool = False


class TaskWorkload(Workload):
    """A workload whose model, data and loss are functions of a file.

    Attributes:
        file: its functions. task_model: the model that they build.
    """

    Options = TaskOptions
    file: ClassVar[TaskFile]
    task_model: ClassVar[TaskModel]
    _known: ClassVar[_Known]

    def __init__(self, options: TaskOptions | None = None) -> None:
        super().__init__(options)
        self._opened = False

    @property
    def in_errors(self) -> str:
        return f"{TASK_FILE} {self.file.name}"

    def place(self, function: Literal["model", "data"]) -> str:
        """The file, the line and the function."""
        return self.file.place(function)

    # Data.

    def split(self, train: bool) -> Split:
        """The training or the test data, opened once in each process."""
        if train not in self._known.splits:
            with torch.device("cpu"):
                self._known.splits[train] = split_of(self.file, train)
        return self._known.splits[train]

    @property
    def batch_size(self) -> int:  # type: ignore[override]
        """Samples in a minibatch of one node: as the file says, or those of an iterable's first batch."""
        return self.split(True).batch_size

    @property
    def evaluated_at_once(self) -> int:  # type: ignore[override]
        """No more samples than a training step takes: a loss may need their memory, or their number."""
        return min(super().evaluated_at_once, max(2, self.batch_size))

    @property
    def in_turn(self) -> bool:  # type: ignore[override]
        """Whether the training data is an iterable, which makes batches of its own size."""
        return self.split(True).in_turn

    @property
    def train_size(self) -> int:
        return self.split(True).count

    def prepare(self, data: Path | None, cache: Path, progress: ShowProgress) -> DataSource:
        """Read some samples of both splits. Nothing is stored.

        Raises:
            UserError: for wrong data of the file, or a directory of data.
        """
        self._refuse(data)
        self.task_model.blank(planned=True)
        train, test = self.split(True), None if self.without_test else self.split(False)
        sizes = train.count, test.count if test else 0
        contents = f"{sizes} {train.content} {test.content if test else ''}"
        turns = f"{self.file.name}: data yields batches"
        if "samples" not in self.file and self.file.settings.samples is None:
            turns += f" of {train.batch_size} samples"
        turns += ". Each node reads all of them and takes every n-th"
        if not train.content:
            turns += (
                ", but two passes of one seed differ, so on several nodes some batches are taken twice and others "
                "never; draw random numbers from torch, NumPy or Python's random"
            )
        return DataSource(
            kind=self.name,
            name=f"data of {self.file.name}",
            fingerprint=hashlib.sha256(contents.encode()).hexdigest(),
            train=sizes[0],
            test=sizes[1],
            note=turns if train.in_turn else "",
        )

    def open(self, source: DataSource) -> None:
        self._opened = True
        split = self.split(True)
        if isinstance(split, Stream):
            split.length = source.train // split.batch_size  # counting reads a whole pass
        elif split.count != source.train:
            raise self.file.wrong(
                "data",
                f"{split.count} samples in a worker and {source.train} "
                "in the launcher; it should return the same data every time",
            )

    def train_batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Samples `indices` of a Dataset, or the batch of an iterable that begins at `indices[0]`."""
        self.task_model.release()
        return self._batch(self.split(True).batch(indices.tolist(), generator.initial_seed()))

    def test_batches(self) -> Iterator[Batch]:
        split = self.split(False)
        return (as_batch(self.file, parts, in_turn=split.in_turn) for parts in split.in_order())

    def _batch(self, parts: Any) -> Batch:
        return as_batch(self.file, parts, in_turn=self.in_turn)

    def _refuse(self, data: Path | None) -> None:
        if data is not None:
            raise UserError(f"{TASK_FILE} {self.file.name} opens its own data in data(train); leave out --data")

    # Model.

    def build_model(self) -> nn.Module:
        return self.task_model.blank(planned=not self._opened)

    def own_model(self, seed: int) -> nn.Module:
        """What `model()` of the file returns under `seed`: with its hooks, attributes, aliases."""
        return self.task_model.built(seed)

    def start_sums(self) -> tuple[float, ...]:
        return self.task_model.sums

    def initial_rows(self, model: nn.Module, name: str, rows: Tensor | None, seed: int) -> Tensor:
        """Initial values of `rows` of parameter `name`, from the whole model under `seed`."""
        whole = self.task_model.initial(name, seed)
        return whole if rows is None else whole[rows.cpu()]

    def initial_buffer(self, model: nn.Module, name: str) -> Tensor:
        return self.task_model.initial(name)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """What `loss(model, batch)` returns, or `model(batch)` without it.

        Raises:
            UserError: if that is no scalar, or no gradient flows from it; or if a model cannot take the batch.
        """
        with self.file.running(self.file.first_of("loss", "model")):
            found: Any = self._computed(model, batch[0].parts)
        if not isinstance(found, Tensor) or found.numel() != 1 or not found.is_floating_point():
            raise self._wrong_loss(f"returns {kind_of(found)}; it should return a scalar tensor")
        if torch.is_grad_enabled() and not found.requires_grad:
            raise self._wrong_loss(
                "returns a tensor without a gradient; compute it from model(...) without item(), "
                "detach() or no_grad()"
            )
        return found.reshape(())

    def _computed(self, model: nn.Module, parts: Any) -> Any:
        """What the loss of the file returns. One that calls torch.autograd.grad always gets a graph."""
        function = self.file.function("loss") if "loss" in self.file else _own_loss
        if torch.is_grad_enabled() or not self._known.differentiates:
            try:
                return function(model, parts)
            except RuntimeError as error:
                if torch.is_grad_enabled() or _WITHOUT_GRAPH not in str(error):
                    raise
            self._known.differentiates = True
        with torch.enable_grad():
            found = function(model, parts)
        return found.detach() if isinstance(found, Tensor) else found

    def _example_loss(self, model: nn.Module) -> Callable[[nn.Module], Tensor]:
        """The loss on an example batch, the same in every call: it finds the state of the file as it is now."""
        batch = self.example_batch(model)

        def loss(model: nn.Module) -> Tensor:
            with self.state_kept():
                return self.loss(model, (batch[0].clone(), batch[1]))

        return loss

    def _wrong_loss(self, problem: str) -> UserError:
        if "loss" in self.file:
            return self.file.wrong("loss", problem)
        return UserError(f"{TASK_FILE} {self.file.name}: model(batch) {problem}, or write def loss(model, batch)")

    def expect(self, data: Path | None, chosen: Collection[str]) -> str:
        self._refuse(data)
        supposed = self.in_turn and self.file.settings.samples is None
        alike = f", as if every batch had the {self.batch_size} samples of the first" if supposed else ""
        return f"model() and a batch of {self.file.name}{alike}"

    def meta_batch(self, samples: int) -> Batch:
        """A batch of `samples`, or of an iterable's own size, without values."""
        with torch.device("cpu"):
            parts = self.split(True).example(samples)
        with during("moving a batch to the meta device", self.place("data"), "use plain tensors"):
            return self._batch(mapped(parts, lambda tensor: tensor.to("meta")))

    def evaluate(self, model: nn.Module, batches: Iterator[Batch]) -> dict[str, float]:
        """What `evaluate(model, batches)` returns; without it the mean loss, each batch by its samples."""
        if "evaluate" in self.file:
            with self.file.running("evaluate"):
                found: dict[str, float] = self.file.function("evaluate")(model, (b[0].parts for b in batches))
            return found
        total, count = 0.0, 0
        with self.state_kept():  # the loss is that of training
            for batch in batches:
                try:
                    total += self.loss(model, batch).item() * len(batch[0])
                except Exception as error:  # a detector returns boxes in evaluation mode, and no loss
                    if lacks_memory(error):
                        raise
                    way_out = "in evaluation mode; write evaluate(model, batches)"
                    raise UserError(f"{reason_of(error)}, {way_out}") from error
                count += len(batch[0])
        return {"loss": total / count if count else math.nan}

    @property
    def optimizer(self) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None:  # type: ignore[override]
        return self._own_optimizer if "optimizer" in self.file else None

    def _own_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        if parameters[0].is_meta:  # of a plan
            self.task_model.mark(parameters)
        return own_optimizer(self.file, parameters)

    # Groups.

    def neuron_groups(self, model: nn.Module) -> list[NeuronGroup]:
        """The groups that `neuron_groups(model)` of the file returns, or those found in the model's structure.

        Raises:
            UserError: if no group is found, with the modules that stay whole.
        """
        if "neuron_groups" in self.file:
            return _as_groups(self.file, self.file.call("neuron_groups", model), model)
        found = self.found_groups()
        if not found.groups:
            reasons = "; ".join(found.obstacles()[:_REASONS])
            raise UserError(
                f"{TASK_FILE} {self.file.name}: istbench finds no neuron groups in the structure of its model"
                f"{f' ({reasons})' if reasons else ''}; write neuron_groups(model) (docs/your-model.md)"
            )
        return found.groups

    def found_groups(self) -> Discovered:
        """The groups in the structure of the model. The first call tries them on an example batch."""
        if self._known.found is None:
            with self._trying("looking for neuron groups in the model") as model:
                self._known.found = discover_groups(model, self._example_loss(model))
        return self._known.found

    def prove_groups(self, groups: Sequence[NeuronGroup]) -> str:
        """Prove groups that `neuron_groups(model)` of the file returned; returns a line if no proof is possible.

        The first call for some groups runs the model. istbench proves the groups that it finds when it finds them.

        Raises:
            UserError: if another order of the units of a group changes the loss.
        """
        if "neuron_groups" not in self.file:
            return ""
        key, proved = repr(list(groups)), self._known.proved
        if key not in proved:
            with self._trying("proving its neuron groups") as model:
                proved[key] = self._prove(model, groups)
        return proved[key]

    def prove_silence(self, groups: Sequence[NeuronGroup]) -> None:
        with self._trying("proving its neuron groups") as model:
            try:
                problems = failing(groups, Proof(model, self._example_loss(model)).silence)
            except Exception:
                return
        for name, problem in problems.items():
            raise UserError(
                f"{TASK_FILE} {self.file.name}: neuron group {name!r} cannot stream, since units in flight are "
                f"zero: {problem}; use ist, or do not divide by a parameter"
            )

    @contextmanager
    def _trying(self, operation: str) -> Iterator[nn.Module]:
        """A model of the file on the CPU, to run inside for `operation`, which may take long."""
        named = users_code(f"{operation} of {TASK_FILE} {self.file.name}")
        with torch.device("cpu"), named, during(operation, self.place("model")):
            yield self.task_model.built(0).eval()

    def _prove(self, model: nn.Module, groups: Sequence[NeuronGroup]) -> str:
        try:
            problems = failing(groups, Proof(model, self._example_loss(model)).order)
        except Exception as error:  # checks of the loss report a mistake of its own
            reason = error_line(error) or str(error).partition("\n")[0]
            return f"neuron groups of {self.file.name} are not proved: {reason}"
        for group in groups:
            if group.name in problems:
                raise self.file.wrong("neuron_groups", misfit(model, group, groups, problems[group.name]))
        return ""

    def example_batch(self, model: nn.Module, number: int = 0) -> Batch:
        """A few training samples; a whole minibatch if the loss of `model` takes no other size.

        An iterable gives a batch of its own. number: other samples for each.
        """
        split = self.split(True)
        few = min(max(self.batch_size, _LEAST_EXAMPLE), _EXAMPLE)
        batch = self._batch(split.example(few, number))
        if few == self.batch_size or self.in_turn:
            return batch
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                self.loss(model, copy.deepcopy(batch))
        except Exception:
            return self._batch(split.example(self.batch_size, number))
        return batch

    # Before training.

    def state_kept(self) -> AbstractContextManager[None]:
        """Afterwards, the globals of the file, and of the modules beside it, are as before."""
        return state_kept(self.file.folder)

    def try_out(self) -> None:
        """Try the file once, on throw-away weights; its data is open.

        Raises:
            UserError: for the first mistake.
        """
        self.trial()

    def idle_parameters(self) -> list[str]:
        """The parameters that get no gradient from one of two batches. The first call tries out the file."""
        return self.trial().idle

    def trial(self) -> TrialFindings:
        """The findings of two batches. The first call tries out the file."""
        if self._known.trial is None:
            self._known.trial = self._tried()
        return self._known.trial

    def _tried(self) -> TrialFindings:
        model = self.task_model.built(0).train()
        before = plain_attributes(model)
        idle = set[str]()
        for number in range(2):  # a parameter may serve some batches only
            model.zero_grad()
            with self.file.watched(self.file.first_of("loss", "model")):
                value = self.loss(model, copy.deepcopy(self.example_batch(model, number)))
                if not torch.isfinite(value):
                    raise self._wrong_loss(f"returns {value.item()} on untrained weights; it should be finite")
                if (strange := _other_parameter(value, model)) is not None:
                    raise self._wrong_loss(
                        f"uses a parameter of shape {tuple(strange.shape)} that model() does not return, so nobody "
                        "would train it; make it part of the model, or use it under torch.no_grad()"
                    )
                value.backward()
            for name, own in model.named_parameters():
                if own.grad is not None and own.grad.layout != torch.strided:
                    raise self.file.wrong(
                        "model", f"forward gives {name} a sparse gradient; leave sparse=True out of its functions"
                    )
                if own.requires_grad and own.grad is None:
                    idle.add(name)
        after = plain_attributes(model)
        with suppress(Exception), torch.no_grad():  # to know early whether the loss needs a graph
            self.loss(model, copy.deepcopy(self.example_batch(model)))
        if self.optimizer is not None:
            optimizer = self.optimizer(list(model.parameters()))
            with self.file.watched("optimizer"):
                optimizer.step()
            for kept in optimizer.state_dict()["state"].values():
                _check_plain(self.file, kept)
        return TrialFindings(
            idle=[name for name, _ in model.named_parameters() if name in idle],
            unsaved=[name for name, value in before.items() if after.get(name, value) != value],
        )


def _other_parameter(loss: Tensor, model: nn.Module) -> nn.Parameter | None:
    """A parameter that `loss` depends on, with a gradient, and `model` lacks; None if there is none."""
    own = set(map(id, model.parameters()))
    nodes, seen = [loss.grad_fn], set[object]()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, nn.Parameter) and id(leaf) not in own:
            return leaf
        nodes += [other for other, _ in node.next_functions]
    return None


@functools.cache
def task_workload(module: ModuleType, path: Path) -> type[TaskWorkload]:
    """The workload of the task file at `path`, whose code is `module`. Its name is that of the file.

    Raises:
        UserError: for a missing function or a wrong setting.
    """
    file = TaskFile(module, path)
    settings = file.settings
    attributes = {
        "__doc__": (module.__doc__ or f"The task file {file.name}.").strip(),
        "name": task_name(path),
        "file": file,
        "task_model": TaskModel(file),
        "metric": settings.metric,
        "lower_is_better": settings.lower_is_better,
        "unit": settings.unit,
        "epochs": settings.epochs,
        "targets": settings.targets,
        "_known": _Known(),
    }
    return type("TaskOfFile", (TaskWorkload,), attributes)


def _as_groups(file: TaskFile, found: Any, model: nn.Module) -> list[NeuronGroup]:
    """Neuron groups, or a dictionary like `{"hidden": [("fc1.weight", 0), ("fc2.weight", 1)]}`."""
    if not found or not isinstance(found, Mapping | list | tuple):
        raise file.wrong(
            "neuron_groups",
            f"returns {shown(found)}; it should return groups such as "
            '{"hidden": [("fc1.weight", 0), ("fc2.weight", 1)]}',
        )
    if not isinstance(found, Mapping):
        return cast(list[NeuronGroup], found)  # `validate_groups` checks it
    tensors = named_tensors(model)
    groups = []
    for name, places in found.items():
        try:
            slots = tuple(Slot(*place) for place in places)
            size = tensors[slots[0].tensor].shape[slots[0].dim] // slots[0].block
        except (TypeError, IndexError, KeyError, AttributeError, ZeroDivisionError):
            raise file.wrong(
                "neuron_groups",
                f"group {name!r} is {shown(places)}; it should be a list of (tensor, "
                'dimension), such as ("fc1.weight", 0), of tensors of the model',
            ) from None
        groups.append(NeuronGroup(str(name), size, slots))
    return groups


def _own_loss(model: nn.Module, parts: Any) -> Any:
    """What `model` returns for a batch. It should be a loss."""
    try:
        return model(parts)
    except (AttributeError, TypeError) as error:
        raise UserError(
            f"{reason_of(error)}; without def loss(model, batch), the model gets the whole batch, a "
            f"{type(parts).__name__}: write one"
        ) from None
