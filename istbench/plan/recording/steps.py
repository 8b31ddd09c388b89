"""Records optimizer steps under torch's global hooks.

Steps come in four parts. The first two show which optimizers step, and in which order. The third counts operations
and bytes. During the next few, hooks on every parameter and module note the moments of first uses and of complete
gradients. All others run without these hooks: their median is the time of a step.
"""

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import LBFGS, Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from istbench import __version__
from istbench.base.errors import UserError
from istbench.base.machine import busy_seconds, cores, cores_of_others
from istbench.base.processes import descendants, stat_of
from istbench.cluster.script_record import (
    FLOATS,
    ITEM_BYTES,
    LEAST_STEPS,
    RecordedParameter,
    RecordedTensor,
    ScriptRecord,
)
from istbench.cluster.trace import TraceMeta
from istbench.fabric.timestamps import Timestamps
from istbench.methods.footprint import tensor_bytes
from istbench.node.effort import EFFORT
from istbench.node.machine_speed import MemoryArrays, device_memory
from istbench.node.peak_memory import PeakMemory
from istbench.node.step_work import CountedStep, OperationCounter
from istbench.node.trace_sample import calibrated_shapes, measured, speeds_of
from istbench.plan.recording.modules import FoundModel, compiled_frames, find_model

_LOOKED_AT = 2  # steps that show the optimizers
_MOST_NOTED = 10  # steps with hooks on parameters
_LEAST_TIMED = 3
_SLOW = 1.5  # times the median: an evaluation, or a checkpoint
_NAMED = 3


class RecordingEnded(BaseException):
    """Ends a script after its recording. It is no Exception, so that a script cannot mistake it for its own."""


class CannotRecord(BaseException):
    """Ends a script that cannot be recorded; the message is the reason."""


@dataclass
class _Step:
    """Timestamps of one step: its start and end, of optimizers, and by parameter or its number of gradients."""

    started: Any
    ended: Any = None
    optimizers: list[int] = field(default_factory=list)
    first_began: Any = None
    used: dict[int, Any] = field(default_factory=dict)
    ready: dict[int, Any] = field(default_factory=dict)
    gradients: dict[int, int] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)  # of parameters, at their last gradient
    inside: dict[int, int] = field(default_factory=dict)  # gradients that became ready while an optimizer stepped
    since_optimizer: int = 0
    between: bool = False  # whether gradients became ready between two optimizers
    skipped: bool = False  # whether a GradScaler left out an update, because gradients were not finite


class StepRecorder:
    """Records `steps` optimizer steps inside `with`, and then raises `RecordingEnded` from the last one.

    Args:
        steps: at least `LEAST_STEPS`.
        only: the optimizer whose steps count; by default all optimizers of the process.
        done: called with the record before `RecordingEnded` is raised.
        script, arguments: as in `ScriptRecord`.

    Attributes:
        record: what was recorded; None before the end. refusal: the reason why nothing can be recorded.
        error: of `done`.
    """

    def __init__(
        self,
        steps: int,
        *,
        only: Optimizer | None = None,
        done: Callable[[ScriptRecord], None] = lambda record: None,
        script: str = "",
        arguments: Sequence[str] = (),
    ) -> None:
        self._wanted, self._only, self._done = steps, only, done
        self._script, self._arguments = script, tuple(arguments)
        self._noted = max(2, min(_MOST_NOTED, (steps - _LOOKED_AT - 1) // 3))
        self._pid = os.getpid()
        self.record: ScriptRecord | None = None
        self.refusal = ""
        self.error: UserError | None = None
        self._closed = 0
        self._several_points = False  # whether parameters change between backward passes
        self._begun = self._skipped = 0  # updates so far, and steps with one that was left out
        self._scaler_step = torch.amp.GradScaler.step
        self._handles: list[Any] = []
        self._optimizers: dict[int, Optimizer] = {}
        self._numbers: dict[int, int] = {}  # of parameters, by identity
        self._owned: dict[int, list[int]] = {}  # the numbers of a module's own parameters, by its identity
        self._parameters: list[Tensor] = []
        self._timestamps: Timestamps | None = None
        self._device = torch.device("cpu")
        self._stepping: list[int] = []  # optimizers inside their step, the outermost first
        self._cycle: list[int] = []  # the optimizers of a step, in order
        self._step = _Step(None)
        self._last_end: Any = None
        self._timed: list[_Step] = []
        self._seen: list[_Step] = []
        self._model: FoundModel | None = None
        self._counter: _ClippingSeen | None = None
        self._counted: CountedStep | None = None
        self._clips = False
        self._speeds: list[list[float]] = []
        self._resident = PeakMemory(torch.device("cpu"))
        self._allocated: PeakMemory | None = None
        self._held = 0 if only is None else _held_bytes(only)
        self._busy_before, self._own_before = busy_seconds(), _own_seconds()
        self._began_at = time.perf_counter()
        self._compiled_before = compiled_frames()

    @property
    def taken(self) -> int:
        """Steps so far. Whether other optimizers follow the first one shows as it steps again."""
        return self._closed or int(self._last_end is not None)

    def __enter__(self) -> "StepRecorder":
        self._handles += [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]
        self._watch_scalers()
        return self

    def __exit__(self, *error: object) -> None:
        torch.amp.GradScaler.step = self._scaler_step  # type: ignore[method-assign]
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._end_counting()

    def _ignored(self, optimizer: Optimizer) -> bool:
        """Whether `optimizer` does not count: of another process, for example a data loader's, or not chosen."""
        return os.getpid() != self._pid or (self._only is not None and optimizer is not self._only)

    def _watch_scalers(self) -> None:
        """Count an update that a GradScaler leaves out: torch runs no hook of the optimizer for it."""
        scaler_step = self._scaler_step

        def step(scaler: torch.amp.GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> float | None:
            begun = self._begun
            try:
                loss = scaler_step(scaler, optimizer, *args, **kwargs)
            except RecordingEnded:
                scaler.update()  # a block may train on, and torch took the step for one that is under way
                raise
            if begun == self._begun and not self._ignored(optimizer):
                self._before(optimizer, args, kwargs)
                self._step.skipped = True
                self._after(optimizer, args, kwargs)
            return loss

        torch.amp.GradScaler.step = step  # type: ignore[method-assign, assignment]

    def _before(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if self._ignored(optimizer):
            return
        self._begun += 1
        if self.record is not None:
            raise RecordingEnded
        if self.refusal:
            raise CannotRecord(self.refusal)
        key = id(optimizer)
        if key in self._stepping:  # an error ended its last step
            del self._stepping[self._stepping.index(key) :]
        self._stepping.append(key)
        if len(self._stepping) > 1:  # an optimizer inside another
            return
        if self._timestamps is None:
            self._begin(optimizer)
        if key not in self._optimizers:
            self._watch(optimizer)
        if self._closed == 0 and key in self._step.optimizers:
            self._end_first_step()
        step = self._step
        if step.optimizers:
            step.between |= step.since_optimizer > 0
        else:
            assert self._timestamps is not None
            step.first_began = self._timestamps.now()
        step.since_optimizer = 0
        step.optimizers.append(key)

    def _after(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if self._ignored(optimizer) or not self._stepping:
            return
        self._stepping.pop()
        if self._stepping:
            return
        assert self._timestamps is not None
        self._last_end = self._timestamps.now()
        self._step.since_optimizer = 0
        self._step.versions.clear()
        if self._cycle and id(optimizer) == self._cycle[-1]:
            self._end_step()

    def _begin(self, optimizer: Optimizer) -> None:
        """Before the first step: where it computes."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            nodes = torch.distributed.get_world_size()
            if nodes > 1:
                self.refuse(
                    f"it trains in a process group of {nodes}, whose exchange would count as computing; record "
                    "one process without torchrun"
                )
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        devices = {parameter.device for parameter in parameters}
        if len(devices) != 1:
            listed = " and ".join(sorted(map(str, devices))) or "no device"
            self.refuse(f"its parameters lie on {listed}; record a model on one device")
        (self._device,) = devices
        if self._device.type not in ("cpu", "cuda"):
            self.refuse(f"it trains on {self._device.type}; istbench times processors and CUDA alone")
        self._timestamps = Timestamps(self._device)
        self._step.started = self._timestamps.now()

    def _watch(self, optimizer: Optimizer) -> None:
        """Hook the parameters of an optimizer at its first step."""
        if self._closed:
            self.refuse(
                f"a second optimizer ({type(optimizer).__name__}) begins to step after step {self._closed}; "
                "record the other one: with istbench.record(optimizer)"
            )
        if isinstance(optimizer, LBFGS):
            self.refuse("LBFGS computes the loss several times in a step; its exchange does not follow from sizes")
        self._optimizers[id(optimizer)] = optimizer
        self._number([parameter for group in optimizer.param_groups for parameter in group["params"]])

    def _number(self, parameters: Sequence[Tensor]) -> None:
        """Give new parameters a number and, if they need a gradient, a hook."""
        for parameter in parameters:
            if id(parameter) in self._numbers:
                continue
            if is_traceable_wrapper_subclass(parameter):
                self.refuse(f"a parameter is a {type(parameter).__name__}, which has no size of its own")
            if parameter.requires_grad and _dtype(parameter) not in FLOATS:
                known = ", ".join(FLOATS)
                self.refuse(f"a parameter of type {_dtype(parameter)} is trained; istbench knows {known}")
            number = self._numbers[id(parameter)] = len(self._parameters)
            self._parameters.append(parameter)
            if parameter.requires_grad and parameter.is_leaf:
                hook = partial(self._gradient_ready, number)
                self._handles.append(parameter.register_post_accumulate_grad_hook(hook))

    def _gradient_ready(self, number: int, parameter: Tensor) -> None:
        if self._timestamps is None or self.record is not None or self._closed > _LOOKED_AT + self._noted + 1:
            return
        step = self._step
        step.since_optimizer += 1
        step.gradients[number] = step.gradients.get(number, 0) + 1
        self._several_points |= step.versions.get(number, parameter._version) != parameter._version
        step.versions[number] = parameter._version
        step.ready[number] = self._timestamps.now()
        if self._stepping:
            step.inside[number] = step.inside.get(number, 0) + 1
        if parameter.grad is not None and parameter.grad.layout != torch.strided:
            self.refusal = "a parameter has sparse gradients, whose bytes differ from step to step"

    def _used(self, module: nn.Module, _inputs: object) -> None:
        numbers = self._owned.get(id(module))
        # An evaluation is no training; a checkpoint of activations runs without gradients at first.
        if numbers and (torch.is_grad_enabled() or module.training) and self._timestamps is not None:
            moment = self._timestamps.now()
            for number in numbers:
                self._step.used.setdefault(number, moment)

    def _end_first_step(self) -> None:
        """The optimizers of the first step have all stepped, since the first one is about to step again."""
        first = self._step
        self._cycle = [*first.optimizers]
        self._skipped += first.skipped
        self._step = _Step(self._last_end)
        # What became ready since then belongs to the step under way.
        self._step.gradients = dict(first.gradients)
        self._closed = 1

    def _end_step(self) -> None:
        assert self._timestamps is not None
        step = self._step
        step.ended = self._last_end
        self._check(step)
        if step.skipped:
            self._leave_out()
            return
        self._closed += 1
        if self._closed == _LOOKED_AT:
            self._look()
            self._begin_counting()
        elif self._closed == _LOOKED_AT + 1:
            self._end_counting()
            self._calibrate()
            if self._device.type == "cuda":
                self._allocated = PeakMemory(self._device)
                self._allocated.start()
            self._resident.start()
            self._note_uses()
        elif self._closed <= _LOOKED_AT + 1 + self._noted:
            self._seen.append(step)
            if self._closed == _LOOKED_AT + 1 + self._noted:
                # All but those of optimizers, so that they take no time from the steps to come.
                for handle in self._handles[2:]:
                    handle.remove()
                del self._handles[2:]
        else:
            self._timed.append(step)
        if self._closed >= self._wanted:
            self.finish()
            raise RecordingEnded
        self._step = _Step(self._timestamps.now())

    def _leave_out(self) -> None:
        """Begin the step again: its update was left out."""
        assert self._timestamps is not None
        self._skipped += 1
        if self._counter is not None:
            self._end_counting()
            self._begin_counting()
        self._step = _Step(self._timestamps.now())

    def _check(self, step: _Step) -> None:
        """Refuse steps that exchange in another way than once, before the optimizers."""
        if step.optimizers != self._cycle:
            self.refuse(
                "its optimizers step in turns that change; record one of them: with istbench.record(optimizer)"
            )
        if step.between:
            self.refuse(
                f"{len(set(self._cycle))} optimizers step in turn, with a backward pass between them; record one "
                "of them: with istbench.record(optimizer)"
            )
        if any(count > 1 for count in step.inside.values()):
            self.refuse("its optimizer computes the loss several times in a step")
        if self.refusal:
            raise CannotRecord(self.refusal)

    def refuse(self, reason: str) -> None:
        """End the script from within, because it cannot be recorded."""
        self.refusal = reason
        raise CannotRecord(reason)

    def _look(self) -> None:
        """Find the model behind the optimizers, and hook parameters that no optimizer has."""
        self._model = find_model(self._parameters, compiled=compiled_frames() > self._compiled_before)
        self._number([parameter for parameter, _ in self._model.parameters])

    def _begin_counting(self) -> None:
        assert self._model is not None
        if not self._model.compiled:  # torch's compiled kernels are no operations that it could count
            self._counter = _ClippingSeen(self._parameters, lambda: bool(self._stepping))
            self._counter.__enter__()

    def _end_counting(self) -> None:
        if self._counter is not None:
            self._counter.__exit__(None, None, None)
            self._counted, self._clips = self._counter.counted(), self._counter.clips
            self._counter = None

    def _calibrate(self) -> None:
        shapes = calibrated_shapes(self._counted.shapes if self._counted else (), self._device.type)
        with torch.no_grad(), torch.autocast(self._device.type, enabled=False):
            arrays = MemoryArrays(self._device)
            self._speeds += [measured(shapes, self._device, arrays) for _ in range(EFFORT.repeats)]

    def _note_uses(self) -> None:
        """Hook the modules: torch would compile a hooked one again, so their uses stay unknown then."""
        assert self._model is not None
        if self._model.compiled:
            return
        for module in self._model.owners:
            own = (self._numbers.get(id(parameter)) for parameter in module._parameters.values())
            self._owned[id(module)] = [number for number in own if number is not None]
        # In the model itself, a copy or a file of it would have the hook too.
        self._handles.append(register_module_forward_pre_hook(self._used))

    @property
    def enough(self) -> bool:
        """Whether there are steps enough for a record."""
        return len(self._timed) >= _LEAST_TIMED

    @property
    def shortage(self) -> str:
        """The way out if there are not, for an error."""
        least = _LOOKED_AT + 1 + self._noted + _LEAST_TIMED
        fewer = f"fewer steps, at least {LEAST_STEPS}, or " if least > LEAST_STEPS else ""
        return f"a record of {self._wanted} takes at least {least}: ask for {fewer}more training"

    def finish(self) -> ScriptRecord:
        """Make the record of the steps so far; there must be `enough`."""
        if self.record is None:
            self._resident.stop()
            if self._allocated is not None:
                self._allocated.stop()
            others = cores_of_others(
                self._busy_before,
                busy_seconds(),
                _own_seconds() - self._own_before,
                time.perf_counter() - self._began_at,
            )
            self._calibrate()
            self.record = self._make(others)
            try:
                self._done(self.record)
            except UserError as error:  # the script must not take it for its own
                self.error = error
        return self.record

    def _make(self, others_cores: float | None) -> ScriptRecord:
        assert self._model is not None
        assert self._timestamps is not None
        samples = [self._timestamps.seconds(step.started, step.ended) for step in self._timed]
        step_s = statistics.median(samples)
        shares = [_Shares.of(step, self._timestamps) for step in self._seen]
        before = statistics.median(own.before_update for own in shares)
        update = min(1.0 - before, statistics.median(own.update for own in shares))
        parameters = self._recorded_parameters(shares, step_s)
        first_shape = calibrated_shapes(self._counted.shapes if self._counted else (), self._device.type)
        allocated = None if self._allocated is None else self._allocated.peak
        resident = self._resident.peak
        return ScriptRecord(
            script=self._script,
            arguments=self._arguments,
            step_s=step_s,
            samples_s=tuple(samples),
            update_s=step_s * update,
            before_update_s=step_s * before,
            parameters=tuple(sorted(parameters, key=_readiness)),
            buffers=tuple(_tensor(buffer, (name,)) for buffer, name in self._model.buffers),
            modules=self._model.modules,
            backward_passes=max((count for step in self._seen for count in step.gradients.values()), default=1),
            optimizers=tuple(type(self._optimizers[key]).__name__ for key in self._cycle),
            state_tensors=_state_tensors(self._optimizers.values()),
            state_bytes=sum(map(_state_bytes, self._optimizers.values())),
            resident_bytes=None if resident is None else max(0, resident) + self._held,
            allocated_bytes=allocated,
            memory_bytes=device_memory(self._device),
            clips=self._clips,
            machine=TraceMeta(
                nodes=1,
                work=self._counted.work if self._counted else None,
                threads=torch.get_num_threads(),
                device="cuda" if self._device.type == "cuda" else "cpu",
                cores=cores(),
                others_cores=others_cores,
                **speeds_of(first_shape, self._speeds),
            ),
            environment=_environment(self._device),
            notes=tuple(self._notes(samples, step_s, parameters)),
        )

    def _recorded_parameters(self, shares: "Sequence[_Shares]", step_s: float) -> list[RecordedParameter]:
        assert self._model is not None
        recorded = []
        for place, (parameter, names) in enumerate(self._model.parameters):
            number = self._numbers[id(parameter)]
            used = [own.used[number] for own in shares if number in own.used]
            ready = [own.ready[number] for own in shares if number in own.ready]
            tensor = _tensor(parameter, names)
            recorded.append(
                RecordedParameter(
                    names=names,
                    shape=tensor.shape,
                    dtype=tensor.dtype,
                    place=place,
                    trained=parameter.requires_grad,
                    used_s=step_s * statistics.median(used) if used else None,
                    ready_s=step_s * statistics.median(ready) if ready else None,
                )
            )
        return recorded

    def _notes(self, samples: Sequence[float], step_s: float, parameters: Sequence[RecordedParameter]) -> list[str]:
        assert self._model is not None
        notes = []
        slow = sum(sample > _SLOW * step_s for sample in samples)
        if slow:
            notes.append(
                f"{slow} of {len(samples)} steps took over {_SLOW:g} times the median, as those with an evaluation "
                "do; the median leaves them out"
            )
        if self._several_points:
            notes.append(
                "parameters change between the backward passes of a step, as with SAM; a replay exchanges the "
                "gradients of the last pass alone"
            )
        if self._skipped:
            notes.append(
                f"a GradScaler left out the update of {self._skipped} steps, whose gradients were not finite; the "
                "record leaves these steps out"
            )
        without = [own.names[0] for own in parameters if own.trained and own.ready_s is None]
        if without:
            named = ", ".join(without[:_NAMED]) + (" and others" if len(without) > _NAMED else "")
            notes.append(f"no gradient reached {named}: a plan sends them last")
        if self._model.compiled:
            notes.append(
                "torch compiled the model, so operations and first uses of parameters are unknown: a replay on "
                "another cluster scales by a usual matrix product, and forward passes wait for all parameters"
            )
        if self._model.outside:
            notes.append(f"{self._model.outside} parameters belong to no module, so their groups are unknown")
        return notes


class _ClippingSeen(OperationCounter):
    """Also notes whether the script multiplies gradients of `parameters` in place after it took their norm.

    stepping: whether an optimizer steps now, which may do the same for each of them.
    """

    def __init__(self, parameters: Sequence[Tensor], stepping: Callable[[], bool]) -> None:
        super().__init__()
        self._parameters = parameters
        self._stepping = stepping
        self._normed = False
        self.clips = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run `func`, count it, and look at what it does to gradients."""
        name = func._overloadpacket.__name__
        if "norm" in name and self._takes_gradients(args):
            self._normed = True
        elif name in ("mul_", "_foreach_mul_") and self._normed and self._takes_gradients(args[:1]):
            self.clips = True
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _takes_gradients(self, args: Any) -> bool:
        if self._stepping():
            return False
        own = {id(parameter.grad) for parameter in self._parameters if parameter.grad is not None}
        return any(id(value) in own for value in tree_leaves(args))


@dataclass(frozen=True)
class _Shares:
    """Timestamps of a step as shares of its seconds: by parameter, and of its update."""

    used: dict[int, float]
    ready: dict[int, float]
    before_update: float
    update: float

    @classmethod
    def of(cls, step: _Step, timestamps: Timestamps) -> "_Shares":
        whole = timestamps.seconds(step.started, step.ended) or 1.0

        def share(moment: Any) -> float:
            return min(1.0, max(0.0, timestamps.seconds(step.started, moment) / whole))

        ready = {number: share(moment) for number, moment in step.ready.items()}
        began, last = share(step.first_began), max(ready.values(), default=0.0)
        return cls(
            used={number: share(moment) for number, moment in step.used.items()},
            ready=ready,
            before_update=max(0.0, began - last),
            update=1.0 - max(began, last),
        )


def _readiness(parameter: RecordedParameter) -> tuple[bool, float, int]:
    """Order of gradients; those that were never ready come last, in the order of a backward pass."""
    unseen = parameter.ready_s is None
    return unseen, parameter.ready_s or 0.0, -parameter.place


def _tensor(tensor: Tensor, names: tuple[str, ...]) -> RecordedTensor:
    dtype: Any = _dtype(tensor)
    if dtype not in ITEM_BYTES:  # such as uint16: as many bytes
        dtype = {1: "int8", 2: "int16", 4: "int32"}.get(tensor.element_size(), "int64")
    return RecordedTensor(names=names, shape=tuple(tensor.shape), dtype=dtype)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _state_bytes(optimizer: Optimizer) -> int:
    kept = [value for own in optimizer.state.values() if isinstance(own, dict) for value in own.values()]
    return tensor_bytes(value for value in kept if isinstance(value, Tensor))


def _state_tensors(optimizers: Any) -> int:
    """Tensors of its own size that an optimizer keeps for a parameter: the median over parameters."""
    counts = [
        sum(isinstance(value, Tensor) and value.numel() == parameter.numel() > 1 for value in kept.values())
        for optimizer in optimizers
        for parameter, kept in optimizer.state.items()
        if isinstance(parameter, Tensor) and isinstance(kept, dict)
    ]
    return int(statistics.median_low(counts)) if counts else 0


def _held_bytes(optimizer: Optimizer) -> int:
    """Bytes of an optimizer's parameters, gradients and state that exist now, in the memory of the process."""
    tensors = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    tensors += [parameter.grad for parameter in tensors if parameter.grad is not None]
    held = tensor_bytes(tensor for tensor in tensors if tensor.is_cpu)
    return held + (_state_bytes(optimizer) if tensors and tensors[0].is_cpu else 0)


def _environment(device: torch.device) -> dict[str, str]:
    found = {
        "istbench": __version__,
        "torch": str(torch.__version__),
        "python": sys.version.split()[0],
        "system": platform.platform(),
        "host": platform.node(),
    }
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
    return found


def _own_seconds() -> float:
    """CPU seconds of this process and its children, such as those of a data loader."""
    ended = os.times()
    ticks = sum(int(text) for child in descendants(ended=True) for text in stat_of(child)[11:13])  # user, system
    return time.process_time() + ended.children_user + ended.children_system + ticks / os.sysconf("SC_CLK_TCK")
