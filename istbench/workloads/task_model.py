"""The model of a task file: its structure without values, and the initial values of the user's own constructors."""

import copy
import warnings
import weakref
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from istbench.base.error_lines import during
from istbench.base.seeds import derived_seed
from istbench.workloads.base import STORED_TYPES
from istbench.workloads.initialise import with_storage
from istbench.workloads.task_batches import RandomNumbers, kind_of
from istbench.workloads.task_file import TaskFile

_SPARSE = (nn.Embedding, nn.EmbeddingBag)
_COPIED = "leave out what copy.deepcopy cannot copy, such as open files, locks and tensors that forward computed"
_HALF = (torch.float16, torch.bfloat16)


class TaskModel:
    """The model that `model()` of a task file builds.

    Each node builds the whole model once on its CPU, under the seed, and copies its initial values from there.
    `release` frees them. So a node that starts needs memory for one more model than its method keeps.
    """

    def __init__(self, file: TaskFile) -> None:
        self._file = file
        self._blank: dict[bool, nn.Module] = {}
        self._seed = 0
        self.sums: tuple[float, ...] = ()  # over the values of the last model that was built
        self._values: dict[str, Tensor] | None = None
        self._last: list[weakref.ref[nn.Module]] = []  # of the last call of `model()`: the modules with tensors

    def built(self, seed: int) -> nn.Module:
        """The model with its values, on the CPU; the same for the same `seed`.

        Raises:
            UserError: if `model()` returns no float32 model to train, or no new one.
        """
        with torch.device("cpu"), RandomNumbers(derived_seed(seed, "model")).drawn():
            model = self._new()
            with self._during("moving the model to the CPU", "return a whole model, on the CPU"):
                model = model.to("cpu")
                self.sums = _sums(model)
        return model

    def _during(self, operation: str, way_out: str) -> AbstractContextManager[None]:
        return during(operation, self._file.place("model"), way_out)

    def _copied(self, model: nn.Module) -> nn.Module:
        with self._during("copying the model", _COPIED):
            return copy.deepcopy(model)

    def blank(self, *, planned: bool) -> nn.Module:
        """The model on the meta device.

        planned: for a plan, so that nothing is allocated if `model()` works on the meta device. Otherwise its
            structure comes from a model on the CPU, so that tensors that are no parameters keep their values.
        """
        if planned not in self._blank:
            model = self._on_meta() if planned else None
            # A model that torch.compile made has no truth value.
            self._blank[planned] = self._emptied() if model is None else model
        return self._copied(self._blank[planned])

    def mark(self, parameters: list[nn.Parameter]) -> None:
        """Give `parameters`, which stand for those of a planned model, the attributes that no copy of it keeps."""
        self.blank(planned=True)
        for own, like in zip(parameters, self._blank[True].parameters(), strict=True):
            vars(own).update(vars(like))

    def _emptied(self) -> nn.Module:
        """A model from the CPU, without the values of its parameters and buffers."""
        model = self.built(0)
        marks = [
            {name: value.to("meta") if isinstance(value, Tensor) else value for name, value in vars(own).items()}
            for own in model.parameters()
        ]
        with self._during("moving the model to the meta device", "give it no state that depends on values"):
            model = with_storage(model, torch.device("meta"))
        self._copied(model)
        for own, mark in zip(model.parameters(), marks, strict=True):
            vars(own).update(mark)
        return model

    def _on_meta(self) -> nn.Module | None:
        """The model, built on the meta device; None where its constructors need values."""
        try:
            with torch.device("meta"), RandomNumbers(0).drawn(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of weights that are loaded into tensors without values
                model = self._new()
            copy.deepcopy(model)
        except Exception:  # built on the CPU, it may have no problem, or the one to report
            return None
        whole = all(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
        return model if whole else None

    def initial(self, name: str, seed: int | None = None) -> Tensor:
        """The initial value of parameter or buffer `name`; `seed` is by default that of the last call."""
        if self._values is None or (seed is not None and seed != self._seed):
            self._seed = self._seed if seed is None else seed
            model = self.built(self._seed)
            named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
            self._values = {own: tensor.detach() for own, tensor in named}
        return self._values[name]

    def release(self) -> None:
        """Free the initial values; they are built again where they are needed again."""
        self._values = None

    def _new(self) -> nn.Module:
        """What `model()` returns. No part may come from the last call, since `_emptied` takes its values away."""
        model = self._checked(self._file.call("model"))
        for module in model.modules():
            if isinstance(module, _SPARSE):
                module.sparse = False  # methods send dense gradients
        if not model.training:  # as `from_pretrained` leaves it, and a training loop does not
            model.train()
        own = {name: module for name, module in model.named_modules() if not name or _has_tensors(module)}
        earlier = {id(kept) for last in self._last if (kept := last()) is not None}
        for name, module in own.items():
            if id(module) in earlier:
                same = f"module {name}" if name else "object"
                raise self._file.wrong("model", f"returns the same {same} again; build a new model in each call")
        self._last = [weakref.ref(module) for module in own.values()]
        for parameter in model.parameters():
            parameter.grad = None  # methods add to gradients
        return model

    def _checked(self, model: object) -> nn.Module:
        if not isinstance(model, nn.Module):
            raise self._file.wrong("model", f"returns {kind_of(model)}; it should return a torch.nn.Module")
        for name, module in model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                which = f"module {name}" if name else "the model"
                raise self._file.wrong("model", f"torch.jit compiled {which}; return it before torch.jit")
        parameters = dict(model.named_parameters())
        if not parameters:
            only = "; it has only buffers" if any(True for _ in model.buffers()) else ""
            raise self._file.wrong(
                "model", f"returns a module without parameters{only}; it should return a torch.nn.Module to train"
            )
        for name, tensor in (*parameters.items(), *model.named_buffers()):
            if is_lazy(tensor):
                raise self._file.wrong(
                    "model",
                    f"{name} has no size before a first batch; give its layer all sizes, or call the model once on "
                    "an input before model() returns it",
                )
        for name, value in model.state_dict().items():
            if not isinstance(value, Tensor):
                what = kind_of(value)
                raise self._file.wrong("model", f"its state_dict() has {what} in {name}; keep it in a buffer")
        if not any(parameter.requires_grad for parameter in parameters.values()):
            raise self._file.wrong("model", "every parameter has requires_grad=False; one should be trained")
        for name, tensor in (*parameters.items(), *model.named_buffers()):
            halved = tensor.dtype in _HALF
            if halved or (name in parameters and tensor.dtype != torch.float32):
                way = "; train in half precision by --amp bf16 or --amp fp16" if halved else ""
                if tensor.is_complex():
                    way = (
                        "; keep torch.view_as_real of it as the parameter, and use torch.view_as_complex in forward"
                    )
                raise self._file.wrong("model", f"{name} is {tensor.dtype}; it should be torch.float32{way}")
            if tensor.dtype not in STORED_TYPES:
                raise self._file.wrong("model", f"{name} is {tensor.dtype}; no checkpoint keeps those, use another")
        return model


def _has_tensors(module: nn.Module) -> bool:
    """Whether `module` has parameters or buffers of its own, beside those of modules inside it."""
    return any(True for _ in (*module.parameters(recurse=False), *module.buffers(recurse=False)))


def _sums(model: nn.Module) -> tuple[float, ...]:
    """The absolute values of `model` added up, and all values: hosts may differ in the last bits of each.

    Without infinite values, such as those of an attention mask.
    """
    total, signed = 0.0, 0.0
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.layout == torch.strided and tensor.is_floating_point():
            finite = tensor.detach().nan_to_num(0.0, 0.0, 0.0)
            total += float(finite.abs().sum(dtype=torch.float64))
            signed += float(finite.sum(dtype=torch.float64))
    return total, signed
