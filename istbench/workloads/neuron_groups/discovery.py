"""Finds the neuron groups of any model, from one run of it on an example batch.

A recording of the run shows which dimensions of parameters and buffers are the same set of units (graph, rules). A
set that reaches no input, output or residual stream, and that no operation mixes, is a candidate. It becomes a
group if two proofs hold (proof). All other layers stay whole: every subnet contains them.
"""

import copy
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, count, groupby

import torch
from torch import Tensor, nn

from istbench.workloads.neuron_groups.atoms import Atom, keep_whole, roots
from istbench.workloads.neuron_groups.graph import Run, first_line, record_graph
from istbench.workloads.neuron_groups.groups import Attribute, NeuronGroup, Slot, named_tensors, validate_groups
from istbench.workloads.neuron_groups.proof import Proof, failing
from istbench.workloads.neuron_groups.rules import Dims, find_dimensions
from istbench.workloads.neuron_groups.sums import Sums

_AXES = 2  # dimensions of a tensor that a layout can cut
_WAYS = 2  # of dealing out a tensor that are tried
_USUAL = (
    *("the outputs of the network", "bound to the inputs", "the residual stream", "looked up"),
    "the result of this run does not depend on it",
)
_PARTS = 14  # of the numbers that may count units: all of four


@dataclass(frozen=True)
class LeftWhole:
    """A module with parameters, none of which is dealt out, and the reason. An empty name is the model itself."""

    module: str
    reason: str


@dataclass(frozen=True)
class Discovered:
    """The groups of a model, in the order of their first parameters, and the modules that stay whole."""

    groups: list[NeuronGroup]
    left_whole: list[LeftWhole]

    def obstacles(self) -> list[str]:
        """The modules that stay whole, each with its reason; those alike once, with their number.

        Reasons that every network has, such as its outputs, come last.
        """
        alike: dict[str, list[LeftWhole]] = {}
        for whole in sorted(self.left_whole, key=lambda one: any(usual in one.reason for usual in _USUAL)):
            alike.setdefault(re.sub(r"\d+", "", f"{whole.module} {whole.reason}"), []).append(whole)
        return [
            f"{same[0].module or 'the model'}{f' and {len(same) - 1} alike' if same[1:] else ''}: {same[0].reason}"
            for same in alike.values()
        ]


def discover_groups(model: nn.Module, run: Run, *, prove: bool = True) -> Discovered:
    """The neuron groups of `model` that hold in `run`, each proved.

    `model` has weights on the CPU and does not change. `run(model)` runs it on an example batch of at least two
    samples and returns outputs or the loss. It is called a dozen times or more, in training and in evaluation mode,
    with copies of the model: a few samples are enough. Without `prove`, the model may be on the meta device.

    A group has the name of the layer whose outputs its units are. Every node that makes the same call finds the
    same groups in the same order.

    Raises:
        Exception: as `run` raises it for the model as it is.
        TypeError: if `run` returns no tensor.
    """
    with torch.random.fork_rng(devices=[]):
        try:
            graph = record_graph(copy.deepcopy(model).train(), run)
        except Exception as error:
            if not isinstance(run(copy.deepcopy(model).train()), Tensor):
                raise TypeError("run(model) must return a tensor: outputs of the model, or its loss") from None
            problem = f"the run cannot be recorded: {first_line(error)}"
            return Discovered([], [LeftWhole(name, problem) for name, _ in _layers(model)])
        dims, sums = find_dimensions(graph, {name: type(module) for name, module in model.named_modules()})
        problems: dict[str, str] = {}
        candidates = _proved(model, run, dims, sums, problems) if prove else _candidates(model, dims, sums)
    groups = [candidate.variants[0] for candidate in candidates]
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        # Measured (docs/ist.md): such a network learns less with the factor in the few sums without a BatchNorm.
        groups = [group if group.scales_itself else replace(group, sums=()) for group in groups]
    validate_groups(model, groups)
    return Discovered(groups, _left_whole(model, groups, problems, dims))


@dataclass(frozen=True)
class _Candidate:
    """A set of units that is not proved, as groups that differ by the attributes to cut and by the factor of sums.

    The likeliest is first. `kind` is equal for groups of the same layers in other places of the model.
    """

    atom: Atom
    variants: list[NeuronGroup]
    kind: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.variants[0].name


# Candidates.


def _candidates(model: nn.Module, dims: Mapping[str, Dims], sums: Sums) -> list[_Candidate]:
    """Sets of units that no slot shares; of two that do, the one with more parameters."""
    places = _places(model, dims)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    taken: set[tuple[str, int]] = set()
    chosen: list[Atom] = []

    def first(atom: Atom) -> tuple[int, int, int]:
        slots = places[atom]
        covered = sum(sizes.get(name, 0) for name in {slot.tensor for slot in slots})
        return -covered, sum(slot.segments for slot in slots), -atom.size

    for atom in sorted(places, key=first):
        mine = {(slot.tensor, slot.dim) for slot in places[atom]}
        full = any(sum(tensor == name for tensor, _ in taken) >= _AXES for name, _ in mine)
        if not mine & taken and not full:
            taken |= mine
            chosen.append(atom)
    names: set[str] = set()
    found = []
    for atom in [atom for atom in places if atom in chosen]:
        found.append(_candidate(model, atom, places[atom], sums.over(atom), names))
        names.add(found[-1].name)
    return found


def _places(model: nn.Module, dims: Mapping[str, Dims]) -> dict[Atom, list[Slot]]:
    """The slots of every set of interchangeable units, in the order of the model's tensors."""
    for name, module in model.named_modules():
        if isinstance(module, nn.RNNBase | nn.RNNCellBase):
            for short, _ in module.named_parameters(recurse=False):
                for product in dims.get(f"{name}.{short}".removeprefix("."), []):
                    keep_whole(product, "those of a recurrent layer")
    places: dict[Atom, list[Slot]] = {}
    tensors = named_tensors(model)
    for name, tensor in tensors.items():
        for dim, product in enumerate(dims.get(name, [])):
            atoms = roots(product)
            for number, atom in enumerate(atoms):
                slots = places.setdefault(atom, [])
                if any(slot.tensor == name for slot in slots):
                    keep_whole([atom], f"rows and columns of {name} at once: shared or recurrent weights")
                if not tensor.is_floating_point():
                    keep_whole([atom], f"counted by {name}, a buffer of whole numbers")
                before, after = (
                    math.prod(one.size for one in part) for part in (atoms[:number], atoms[number + 1 :])
                )
                slots.append(Slot(name, dim, after, before))
    trained = {name for name, _ in model.named_parameters()}
    return {
        atom: slots
        for atom, slots in places.items()
        if not atom.whole and any(slot.tensor in trained for slot in slots)
    }


def _candidate(
    model: nn.Module, atom: Atom, slots: list[Slot], sums: tuple[str, ...], names: set[str]
) -> _Candidate:
    owners = list(dict.fromkeys(slot.tensor.rpartition(".")[0] for slot in slots))
    layer = next((slot.tensor for slot in slots if slot.dim == 0), slots[0].tensor)
    name = owner = layer.rpartition(".")[0] or layer
    for number in count(2):
        if name not in names:
            break
        name = f"{owner} ({number})"
    known = [attribute for attribute in atom.attributes if _divisible(model, attribute, atom.size)]
    for owner in owners:
        if type(model.get_submodule(owner)) is nn.MultiheadAttention:
            known.append(Attribute(owner, "num_heads"))
    known.sort(key=str)
    lengths = {atom.size * slot.block * scale for slot in slots for scale in {1, slot.segments}} - {atom.size}
    counts, totals = (
        [Attribute(scope, short) for scope in sorted(atom.scopes) for short in _numbers(model, scope, values)]
        for values in ({atom.size}, lengths)
    )
    # Another number may equal that of the units, such as the size of a head: then only some of them count units.
    some = [part for length in range(len(counts) - 1, 0, -1) for part in combinations(counts, length)][:_PARTS]
    more = ((), counts, (*counts, *totals), totals, *some, *((*part, *totals) for part in some if totals))
    variants = dict.fromkeys(tuple(dict.fromkeys((*known, *one))) for one in more)
    group = NeuronGroup(name, atom.size, tuple(slots), found=True, sums=sums)
    # A subnet scales its sums, or the code of the model does, or no layer can, such as those of a bare parameter.
    scaled = [group, replace(group, scales_itself=True), replace(group, sums=())] if sums else [group]
    kind = [f"{_type(model, slot.tensor.rpartition('.')[0])}.{slot.tensor.rpartition('.')[2]}" for slot in slots]
    kind += [f"{_type(model, attribute.module)}:{attribute.name}" for variant in variants for attribute in variant]
    kind += [f"sum:{_type(model, name.rpartition('.')[0])}" for name in sums]
    forms = [replace(one, attributes=variant) for one in scaled for variant in variants]
    return _Candidate(atom, forms, tuple(kind))


def _numbers(model: nn.Module, module: str, values: set[int]) -> list[str]:
    """Names of the attributes of `module` that are whole numbers among `values`."""
    stored = vars(model.get_submodule(module))
    return [name for name, value in stored.items() if type(value) is int and value in values]


def _divisible(model: nn.Module, attribute: Attribute, size: int) -> bool:
    value = getattr(model.get_submodule(attribute.module), attribute.name, None)
    return type(value) is int and value % size == 0


def _type(model: nn.Module, module: str) -> str:
    return type(model.get_submodule(module)).__qualname__


# Proofs.


def _proved(
    model: nn.Module, run: Run, dims: Mapping[str, Dims], sums: Sums, problems: dict[str, str]
) -> list[_Candidate]:
    """The candidates for which both proofs hold; notes the problems of the others, by module.

    In place of a candidate that fails, its tensors may be dealt out in another way, such as heads by their columns.
    """
    proof: Proof | None = None
    proved: list[_Candidate] = []
    for _ in range(_WAYS):
        candidates = _candidates(model, dims, sums)
        if len(candidates) == len(proved):
            break
        try:
            proof = proof or Proof(model, run)
            failed = _failed(proof, candidates)
        except Exception as error:
            problem = f"no proof of their units: {first_line(error)}"
            failed = {candidate.name: problem for candidate in candidates}
        for candidate in candidates:
            if candidate.name in failed:
                keep_whole([candidate.atom], failed[candidate.name])
                for slot in candidate.variants[0].slots:
                    problems.setdefault(slot.tensor.rpartition(".")[0], failed[candidate.name])
        proved = [candidate for candidate in candidates if candidate.name not in failed]
    return proved


def _failed(proof: Proof, candidates: Sequence[_Candidate]) -> dict[str, str]:
    """The candidates that fail, by name, with their problems. The others keep the variants that can be cut."""
    failed = failing([candidate.variants[0] for candidate in candidates], proof.order)
    for _, same in groupby(sorted(candidates, key=lambda one: one.kind), key=lambda one: one.kind):
        alike = [candidate for candidate in same if candidate.name not in failed]
        place, problem = _variant(proof, alike[0]) if alike else (0, "")
        for candidate in alike:
            if place is None:
                failed[candidate.name] = problem
            else:
                del candidate.variants[:place]
    while True:
        found = failing([one.variants[0] for one in candidates if one.name not in failed], proof.cut)
        if not found:
            return failed
        failed |= found


def _variant(proof: Proof, candidate: _Candidate) -> tuple[int | None, str]:
    """The place of the first variant that can be cut, or None and the problem of the first."""
    if len(candidate.variants) == 1:
        return 0, ""  # tried with all others together
    problems = []
    for place, group in enumerate(candidate.variants):
        problems.append(proof.cut([group]))
        if not problems[-1]:
            return place, ""
    return None, problems[0]


# Layers that stay whole.


def _left_whole(
    model: nn.Module, groups: Sequence[NeuronGroup], problems: Mapping[str, str], dims: Mapping[str, Dims]
) -> list[LeftWhole]:
    dealt = {slot.tensor for group in groups for slot in group.slots}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = []
    for name, module in _layers(model):
        own = [names[id(parameter)] for parameter in module.parameters(recurse=False)]
        if not dealt.intersection(own):
            found.append(LeftWhole(name, problems.get(name) or _reason(module, own, dims)))
    return found


def _layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules with parameters of their own, by name."""
    modules = model.named_modules()
    return [(name, module) for name, module in modules if any(True for _ in module.parameters(recurse=False))]


def _reason(module: nn.Module, own: Sequence[str], dims: Mapping[str, Dims]) -> str:
    """The reason why no dimension of the parameters `own` of `module` is dealt out."""
    if not any(name in dims for name in own):
        return "the result of this run does not depend on it"
    turned = isinstance(module, nn.Embedding | nn.EmbeddingBag) or getattr(module, "transposed", False)
    for part in ("inputs", "outputs") if turned else ("outputs", "inputs"):
        for name in own:
            product = dims.get(name, [])[: 1 if part == "outputs" else None]
            whole = [atom for one in product for atom in roots(one) if atom.whole]
            if whole:
                return f"its {part} are {max(whole, key=lambda atom: atom.size).whole}"
    return "its units are dealt out in another way"
