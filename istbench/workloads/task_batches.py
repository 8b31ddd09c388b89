"""The data of a task file: a Dataset by index, or an iterable of batches in its own order."""

import copy
import hashlib
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import islice
from operator import itemgetter
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from istbench.base.decode import convert
from istbench.base.error_lines import TASK_FILE, during
from istbench.base.errors import UserError, shown
from istbench.base.options.numbers import Count
from istbench.base.plugin_code import users_code
from istbench.base.seeds import derived_seed
from istbench.workloads.base import Batch
from istbench.workloads.task_file import TaskFile, plain

_USUAL_BATCH = 32
_MOST_BATCHES = 2**20
_MOST_CHANNELS = 4
_WANTED = "it should return a torch Dataset, or an iterable of batches"
_COLLATED = "let the Dataset return tensors of one shape, or return an iterable of batches"
_TENSORS = "it should be tensors in tuples, lists or dictionaries"
_FIRST = derived_seed("data")  # of the passes that do not train


class Parts:
    """A minibatch of any structure: tuples, lists, mappings and objects of tensors, in the place of one tensor.

    Attributes:
        parts: the structure, as the user's loss takes it.
    """

    def __init__(self, parts: Any, samples: int) -> None:
        self.parts, self._samples = parts, samples

    def to(self, *args: Any, **kwargs: Any) -> "Parts":
        """The same structure with every tensor moved."""
        return self._mapped(lambda tensor: tensor.to(*args, **kwargs), self._samples)

    def clone(self) -> "Parts":
        """The same structure with copies of all tensors, for a loss that changes its batch."""
        return self._mapped(Tensor.clone, self._samples)

    def __deepcopy__(self, _memo: Any) -> "Parts":
        return self.clone()

    def contiguous(self, *, memory_format: torch.memory_format = torch.contiguous_format) -> "Parts":
        """The same structure with every image in `memory_format`."""
        return self._mapped(
            lambda t: t.contiguous(memory_format=memory_format) if t.dim() == 4 else t, self._samples
        )

    def chunk(self, count: int) -> list["Parts"]:
        """At most `count` batches of nearly equal numbers of samples.

        Raises:
            UserError: if a tensor has another length than the number of samples.
        """
        if count == 1:
            return [self]
        if any(not tensor.dim() or len(tensor) != len(self) for tensor in self.tensors):
            raise UserError(
                "accumulation_steps cuts each tensor of a batch along its first dimension, and the "
                "tensors of this batch differ in length; leave accumulation_steps out"
            )
        size = -(-len(self) // count)
        return [
            self._mapped(itemgetter(slice(first, first + size)), min(size, len(self) - first))
            for first in range(0, len(self), size)
        ]

    def equal(self, other: "Parts") -> bool:
        """Whether both hold the same values in the same structure."""
        return _digest(self.parts) == _digest(other.parts)

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors, in the order of the structure."""
        return _tensors(self.parts)

    @property
    def shape(self) -> torch.Size:
        """Of the first tensor."""
        return self.tensors[0].shape

    def dim(self) -> int:
        """The most dimensions of a tensor."""
        return max(tensor.dim() for tensor in self.tensors)

    def __len__(self) -> int:
        return self._samples

    def _mapped(self, change: Callable[[Tensor], Tensor], samples: int) -> "Parts":
        return Parts(mapped(self.parts, change), samples)


def mapped(parts: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """`parts` with `change` of each tensor, also inside mappings and objects that are leaves of torch's pytree."""

    def of_leaf(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return change(leaf)
        inside = _inside(leaf)
        if not inside:
            return leaf
        if isinstance(leaf, Mapping) and not isinstance(leaf, MutableMapping):
            items = {key: mapped(value, change) for key, value in inside.items()}
            try:
                return type(leaf)(items)  # type: ignore[call-arg]
            except TypeError:
                return MappingProxyType(items)
        other = copy.copy(leaf)
        if isinstance(leaf, MutableMapping):  # it may keep its items in a dictionary that the copy shares
            if isinstance(vars(leaf).get("data") if hasattr(leaf, "__dict__") else None, dict):
                other.data = dict(leaf.data)  # type: ignore[attr-defined]
            for key, value in inside.items():
                other[key] = mapped(value, change)
        else:
            for key, value in inside.items():
                object.__setattr__(other, key, mapped(value, change))
        return other

    return tree_map(of_leaf, parts)


def _tensors(parts: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for leaf in tree_leaves(parts):
        inside = _inside(leaf)
        found += [leaf] if isinstance(leaf, Tensor) else [t for value in inside.values() for t in _tensors(value)]
    return found


def _inside(leaf: Any) -> Mapping[str, Any]:
    """The values of a `leaf` of a batch that is a mapping or an object with tensors; empty for any other one."""
    if isinstance(leaf, Tensor | str | bytes | int | float | np.ndarray | nn.Module | type) or leaf is None:
        return {}
    if isinstance(leaf, Mapping):
        return leaf
    values = {
        **getattr(leaf, "__dict__", {}),
        **{name: getattr(leaf, name) for name in _slots(type(leaf)) if hasattr(leaf, name)},
    }
    containers = (Mapping, list, tuple)
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, Tensor) or (isinstance(value, containers) and _tensors(value))
    }


def _slots(kind: type) -> Iterator[str]:
    for one in kind.__mro__:
        slots = vars(one).get("__slots__", ())
        yield from [slots] if isinstance(slots, str) else slots


def samples_of(file: TaskFile, parts: Any, *, in_turn: bool) -> int:
    """The samples of a batch.

    A Dataset's batch has a row of each tensor for each sample. For the batch of an iterable (`in_turn`), `samples`
    of the file says it, else a guess.

    Raises:
        UserError: if `samples(batch)` returns no count.
    """
    if not in_turn:
        return _rows(parts)
    if "samples" in file:
        with file.running("samples"):
            found = plain(file.function("samples")(parts))
        return int(convert(found, Count, lambda _: f"{TASK_FILE} {file.name}: samples(batch)"))
    return file.settings.samples or guessed_samples(parts)


def guessed_samples(parts: Any) -> int:
    """The samples of a batch, from its structure alone: the length of lists of images or of mappings, or rows."""
    if isinstance(parts, list) and parts and all(isinstance(one, Mapping | tuple) for one in parts):
        return len(parts)
    listed = {len(inner) for inner in _lists(parts)}
    return listed.pop() if len(listed) == 1 else _rows(parts)


def _rows(parts: Any) -> int:
    """The length of the first tensor that has one."""
    return next((len(tensor) for tensor in _tensors(parts) if tensor.dim()), 1)


def _lists(parts: Any) -> list[Any]:
    """The lists inside the outermost structure of `parts`, if each holds mappings or images."""
    values = parts.values() if isinstance(parts, Mapping) else parts if isinstance(parts, list | tuple) else ()
    lists = [value for value in values if isinstance(value, list | tuple) and value]
    return lists if all(map(_of_samples, lists)) else []


def _of_samples(inner: Any) -> bool:
    """Whether each element of `inner` is a mapping, or each an image."""
    images = (isinstance(one, Tensor) and one.dim() == 3 and len(one) <= _MOST_CHANNELS for one in inner)
    return all(isinstance(one, Mapping) for one in inner) or all(images)


def as_batch(file: TaskFile, parts: Any, *, in_turn: bool) -> Batch:
    """A minibatch of `file` as methods take it."""
    with during("counting the samples of a batch", file.place("data"), "write samples(batch)"):
        inputs = Parts(parts, samples_of(file, parts, in_turn=in_turn))
    return inputs, torch.empty(len(inputs), 0)  # the targets are among the inputs


class RandomNumbers:
    """Random numbers of the user's data, apart from those of training: of torch on CPUs, NumPy and Python."""

    def __init__(self, seed: int) -> None:
        with self._kept():
            torch.random.default_generator.manual_seed(seed)
            np.random.seed(seed % 2**32)
            random.seed(seed)
            self._now = _states()

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Inside, code draws from these random numbers; training goes on with its own."""
        with self._kept():
            _set_states(self._now)
            try:
                yield
            finally:
                self._now = _states()

    @contextmanager
    def _kept(self) -> Iterator[None]:
        before = _states()
        try:
            yield
        finally:
            _set_states(before)


def _states() -> tuple[Any, ...]:
    return torch.random.default_generator.get_state(), np.random.get_state(), random.getstate()


def _set_states(states: tuple[Any, ...]) -> None:
    torch.random.default_generator.set_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])


class Samples:
    """A Dataset, read by index; torch's `default_collate` makes a batch of its samples."""

    in_turn = False

    def __init__(self, file: TaskFile, train: bool, dataset: Any) -> None:
        self._file, self._where, self._dataset = file, f"data(train={train})", dataset
        self.batch_size = file.settings.batch_size or _USUAL_BATCH
        with file.watched("data"):
            self.count: int = len(dataset)
        if not self.count:
            raise file.wrong("data", f"{self._where} returns a Dataset of length 0; it should have samples")

    def batch(self, indices: list[int], seed: int) -> Any:
        """Samples `indices`; `seed` determines their augmentation."""
        many = getattr(self._dataset, "__getitems__", None)
        with self._file.running("data"), RandomNumbers(seed).drawn():
            samples = many(indices) if many else [self._dataset[index] for index in indices]
        with during("joining samples by torch's default_collate", self._file.place("data"), _COLLATED):
            parts = default_collate(samples)
        return checked_parts(self._file, parts, f"a sample of {self._where}")

    def example(self, samples: int, number: int = 0) -> Any:
        """`samples` samples, others for each `number`; some repeat if there are too few."""
        with self._file.watched("data"):
            return self.batch([(number * samples + at) % self.count for at in range(samples)], 0)

    def in_order(self) -> Iterator[Any]:
        """All samples in order, in batches of `batch_size`."""
        for number, first in enumerate(range(0, self.count, self.batch_size)):
            indices = list(range(first, min(first + self.batch_size, self.count)))
            yield self.batch(indices, derived_seed("in order", number))

    @cached_property
    def content(self) -> str:
        """A digest of some samples, the same for the same data; empty if they differ the second time."""
        some = sorted({0, self.count // 2, self.count - 1})
        with self._file.watched("data"):
            return _steady(self._file, self.batch(some, 0), self.batch(some, 0))


class Stream:
    """An iterable of batches. `data(train)` is called anew for each pass over it, and once to open it.

    A pass follows from its seed: also the random numbers that the user's code draws. The first pass that does not
    train takes what opening returned.
    """

    in_turn = True
    _PASSES = 2  # of training, and of statistics for an evaluation

    def __init__(self, file: TaskFile, train: bool, found: Any, numbers: RandomNumbers) -> None:
        self._file, self._train, self._where = file, train, f"data(train={train})"
        self._told: int | None = None
        with suppress(TypeError):  # a DataLoader over an IterableDataset may not tell it
            self._told = len(found)
        self._opened: tuple[Any, RandomNumbers] | None = (found, numbers)
        # By seed: the number and the batch drawn last of a pass, and those that follow.
        self._passes: OrderedDict[int, tuple[int, Any, Iterator[Any]]] = OrderedDict()
        self._content: str | None = None

    @cached_property
    def _first(self) -> Any:
        """The first batch of a pass that does not train."""
        with self._file.watched("data"):
            return self.at(0, _FIRST)

    @cached_property
    def batch_size(self) -> int:
        """Samples of a batch: those of the first one.

        Raises:
            UserError: if the file gives another size for training.
        """
        size, given = samples_of(self._file, self._first, in_turn=True), self._file.settings.batch_size
        if self._train and given not in (None, size):
            raise self._file.wrong(
                "data",
                f"{self._where} yields batches of {size} samples, but batch_size is {given}; leave batch_size out",
            )
        return size

    @property
    def count(self) -> int:
        """The samples of a pass, if all its batches are as large as the first; the first call may read them all."""
        return self.length * self.batch_size

    @cached_property
    def length(self) -> int:
        """The batches of a pass."""
        if self._told is not None:
            return self._told
        first, counted = self._first, 0
        with users_code(f"counting the batches of {self._where} of {TASK_FILE} {self._file.name}"):
            for batch in self.in_order():
                if counted == _MOST_BATCHES:
                    many = f"{self._where} yields more than {_MOST_BATCHES:,} batches"
                    raise self._file.wrong("data", f"{many}; a pass over the data should end")
                self._content = self._content if counted else _steady(self._file, first, batch)
                counted += 1
        return counted

    def batch(self, indices: list[int], seed: int) -> Any:
        """The batch that begins at sample `indices[0]` of the pass that belongs to `seed`."""
        return self.at(indices[0] // self.batch_size, seed)

    def example(self, samples: int, number: int = 0) -> Any:
        """Batch `number` of a pass, in its own size."""
        if not number:
            return self._first
        last = self.length - 1
        with self._file.watched("data"):
            return self.at(min(number, last), _FIRST)

    def at(self, number: int, seed: int) -> Any:
        """Batch `number` of the pass that belongs to `seed`."""
        opened = self._passes.pop(seed, None)
        if opened is None or number < opened[0]:
            opened = -1, None, self._begun(seed)
        last, batch, following = opened
        for found in islice(following, number - last):
            last, batch = last + 1, found
        if last < number:
            if last < 0:
                raise self._file.wrong("data", f"{self._where} yields no batch; it should yield at least one")
            raise self._file.wrong(
                "data",
                f"{self._where} ends after {last + 1} batches, not {number + 1}; "
                "it should yield as many in every pass",
            )
        self._passes[seed] = last, batch, following  # a pass that fails begins anew
        while len(self._passes) > self._PASSES:
            self._passes.popitem(last=False)
        return batch

    def in_order(self) -> Iterator[Any]:
        """The batches of a pass, in order."""
        yield from self._begun(_FIRST)

    @property
    def content(self) -> str:
        """A digest of the first batch, the same for the same data; empty if it differs in a second pass."""
        if self._content is None:
            first = self._first
            with self._file.watched("data"):
                self._content = _steady(self._file, first, next(self.in_order(), None))
        return self._content

    def _begun(self, seed: int) -> Iterator[Any]:
        """The batches of a new pass."""
        if seed == _FIRST and self._opened is not None:
            found, numbers = self._opened
            self._opened = None
        else:
            numbers = RandomNumbers(seed)
            with numbers.drawn():
                found = _opened(self._file, self._train)
        if isinstance(own := getattr(found, "generator", None), torch.Generator):
            own.manual_seed(seed)  # of a DataLoader; it may outlive the pass
        with self._file.running("data"), numbers.drawn():
            batches = iter(found)
        return self._drawn(batches, numbers)

    def _drawn(self, batches: Iterator[Any], numbers: RandomNumbers) -> Iterator[Any]:
        """The `batches` of the user's code, checked. It draws `numbers`, as `data` left them."""
        while True:
            with self._file.running("data"), numbers.drawn():
                try:
                    found = next(batches)
                except StopIteration:
                    return
            yield checked_parts(self._file, found, f"a batch of {self._where}")


Split = Samples | Stream


def split_of(file: TaskFile, train: bool) -> Split:
    """The training or the test data of `file`.

    Raises:
        UserError: if `data` returns neither a Dataset nor an iterable of batches, or nothing is in it.
    """
    numbers = RandomNumbers(_FIRST)
    with numbers.drawn():
        found = _opened(file, train)
    return Samples(file, train, found) if _is_dataset(found) else Stream(file, train, found, numbers)


def _opened(file: TaskFile, train: bool) -> Any:
    """What `data(train)` returns, with the samples of an IterableDataset in batches."""
    found = file.call("data", train)
    where = f"data(train={train})"
    if isinstance(found, str | bytes | Mapping | Tensor | np.ndarray | nn.Module) or not (
        hasattr(found, "__iter__") or hasattr(found, "__getitem__")
    ):
        raise file.wrong("data", f"{where} returns {kind_of(found)}; {_WANTED}")
    if isinstance(found, IterableDataset):
        return DataLoader(found, batch_size=file.settings.batch_size or _USUAL_BATCH)
    if isinstance(found, Dataset) and not hasattr(found, "__len__"):
        raise file.wrong("data", f"{where} returns a Dataset without __len__; it should tell its length")
    return found


def _is_dataset(found: Any) -> bool:
    if isinstance(found, DataLoader | list | tuple):
        return False
    return isinstance(found, Dataset) or (hasattr(found, "__getitem__") and hasattr(found, "__len__"))


def checked_parts(file: TaskFile, parts: Any, what: str) -> Any:
    """`parts`, if it holds samples.

    Raises:
        UserError: if there is no tensor in it, or an empty one.
    """
    with during("counting the samples of a batch", file.place("data"), _TENSORS):
        tensors = _tensors(parts)
        first = next((tensor for tensor in tensors if tensor.dim()), None)
        empty = first is not None and not len(first) and not guessed_samples(parts)
    if not tensors:
        raise file.wrong("data", f"{what} is {kind_of(parts)}; {_TENSORS}")
    if first is not None and empty:
        raise file.wrong("data", f"{what} has 0 samples: a tensor of shape {tuple(first.shape)}; leave it out")
    return parts


def _steady(file: TaskFile, one: Any, again: Any) -> str:
    """A digest of `one`, a batch of `file`; empty if it differs from `again`."""
    with during("hashing a batch", file.place("data"), _TENSORS):
        digest = _digest(one)
        return digest if digest == _digest(again) else ""


def _digest(parts: Any) -> str:
    digest = hashlib.sha256()
    for leaf in tree_leaves(parts):
        if isinstance(leaf, Tensor):
            digest.update(f"{leaf.dtype} {tuple(leaf.shape)}".encode())
            for plain in _strided(leaf.detach().cpu()):
                digest.update(plain.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif inside := _inside(leaf):
            for key, value in inside.items():
                digest.update(f"{key} {_digest(value)}".encode())
        else:
            digest.update(repr(leaf).encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


def _strided(tensor: Tensor) -> tuple[Tensor, ...]:
    """The parts of a sparse `tensor`, or the tensor itself."""
    if tensor.layout == torch.sparse_coo:
        return tensor.coalesce().indices(), tensor.coalesce().values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor,)


def kind_of(value: Any) -> str:
    """A few words on `value`, for errors."""
    if isinstance(value, Tensor | np.ndarray):
        return f"a {type(value).__name__} of shape {tuple(value.shape)} and type {value.dtype}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    plain = value is None or isinstance(value, str | int | float | tuple | list | dict)
    return shown(value) if plain else f"a {type(value).__name__}"
