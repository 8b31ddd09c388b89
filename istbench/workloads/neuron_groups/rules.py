"""Which dimensions of tensors are the same set of units, by the operations of a graph.

Every operation has a rule: its results have these dimensions of its arguments, these dimensions are the same, and
these stay whole because the operation mixes them or depends on their number or order. An operation without a rule
keeps all dimensions of its arguments whole. A wrong rule costs a group, not a result: groups are proved later.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence

from istbench.workloads.neuron_groups.atoms import Product, equate, fresh, keep_whole, regroup, roots
from istbench.workloads.neuron_groups.graph import Operation, OperationGraph, Value
from istbench.workloads.neuron_groups.groups import Attribute
from istbench.workloads.neuron_groups.sums import Contraction, Sums, parameter_of

Dims = list[Product]

_SUMS = ("add", "add_", "sub", "sub_", "rsub")


def find_dimensions(graph: OperationGraph, kinds: Mapping[str, type]) -> tuple[dict[str, Dims], Sums]:
    """The dimensions of the parameters and buffers that `graph` reads, as products of atoms, by name; its sums.

    `kinds` has the type of every module, by name. Inputs and results of the graph stay whole.
    """
    rules = _Rules(graph, kinds)
    return rules.dimensions(), Sums(graph, rules.contractions)


class _Rules:
    def __init__(self, graph: OperationGraph, kinds: Mapping[str, type]) -> None:
        self._graph, self._kinds = graph, kinds
        self.contractions: list[Contraction] = []
        self._constants = graph.constants()
        self._dims: dict[Value, Dims] = {}
        # Bits of the weight layers whose results a value consists of, and of those that came before.
        self._origin: dict[Value, int] = {}
        self._before: dict[Value, int] = {}
        self._operation = Operation("", (), (), False)

    def dimensions(self) -> dict[str, Dims]:
        for number, operation in enumerate(self._graph.operations):
            self._operation = operation
            self._apply(operation)
            self._follow(operation, 1 << number)
            self._distrust(operation)
            for old, new in operation.aliases:
                self._dims[new] = self._of(old)
                written = operation.outputs[0]
                self._origin[new] = self._origin.get(old, 0) | self._origin[written]
                self._before[new] = self._before.get(old, 0) | self._before[written]
        for product in self._of(self._graph.result):
            keep_whole(product, "the outputs of the network")
        return {name: self._of(value) for name, value in self._graph.values.items()}

    def _of(self, value: Value) -> Dims:
        if value not in self._dims:
            reason = "" if value.name else "bound to the inputs of the network"
            self._dims[value] = [fresh(size, reason) for size in value.shape]
        return self._dims[value]

    def _place(self) -> str:
        scope = self._operation.scope
        return scope[-1] or "the model" if scope else "the loss"

    def _distrust(self, operation: Operation) -> None:
        """Keep everything whole in a forward pass that may go another way for another batch."""
        for name in operation.scope:
            if name in self._graph.reads:
                line, module = self._graph.reads[name], name or "the model"
                for value in (*operation.inputs(), *operation.outputs):
                    for product in self._of(value):
                        keep_whole(product, f"used in {module}, which depends on values of tensors ({line})")

    # Residual streams.

    def _follow(self, operation: Operation, bit: int) -> None:
        """Note the layers that the results come from; a sum of a layer's input and its output is a stream."""
        data = [value for value in operation.inputs() if value in self._origin]
        origins = [self._origin[value] for value in data]
        before = 0
        for value in data:
            before |= self._before[value]
        if operation.name in _SUMS and len(data) == 2:
            skips = [origins[0] & self._before[data[1]], origins[1] & self._before[data[0]]]
            if any(skips):
                for product in self._of(operation.outputs[0]):
                    keep_whole(product, f"part of the residual stream added in {self._place()}")
        makes = operation.name in _LAYERS
        origin = bit if makes else 0
        for mine in origins:
            origin |= 0 if makes else mine
            before |= mine if makes else 0
        for output in operation.outputs:
            self._origin[output], self._before[output] = origin, before

    # Rules.

    def _apply(self, operation: Operation) -> None:
        rule = _RULES.get(operation.name)
        if rule is None:
            rule = next((rule for pattern, rule in _PATTERNS if pattern.match(operation.name)), None)
        if rule is None and operation.pointwise:
            rule = _Rules._pointwise
        try:
            (rule or _Rules._unknown)(self, operation)
        except (AttributeError, LookupError, TypeError, ValueError, ZeroDivisionError):
            self._unknown(operation)  # arguments of a form that the rule does not know
        for output in operation.outputs:
            if 0 in output.shape:
                continue  # it holds nothing, like the second result of an embedding bag
            if [math.prod(atom.size for atom in roots(p)) for p in self._of(output)] != list(output.shape):
                self._unknown(operation)
                return

    def _give(self, operation: Operation, *results: Dims) -> None:
        """Set the dimensions of the results; a result beyond `results` gets its own, which stay whole."""
        for number, output in enumerate(operation.outputs):
            if number < len(results) and len(results[number]) == len(output.shape):
                self._dims[output] = results[number]
            else:
                self._dims[output] = [self._own(size) for size in output.shape]

    def _own(self, size: int) -> Product:
        """A dimension that the operation makes, and that stays whole."""
        return fresh(size, f"made by {self._operation.name} in {self._place()}")

    def _equate(self, one: Product, other: Product) -> None:
        equate(one, other, f"of sizes that {self._operation.name} in {self._place()} does not fit to each other")

    def _keep(self, product: Product, what: str) -> None:
        keep_whole(product, f"{what} in {self._place()}")

    def _unknown(self, operation: Operation) -> None:
        for value in operation.inputs():
            for product in self._of(value):
                self._keep(product, f"used by {operation.name}")
        self._give(operation)

    def _pointwise(self, operation: Operation) -> None:
        """The same element of every argument, after broadcasting."""
        shapes = [output.shape for output in operation.outputs]
        rank = max((len(shape) for shape in shapes), default=0)
        merged: Dims = [() for _ in range(rank)]
        for value in operation.inputs():
            dims = self._of(value)
            for place, product in enumerate(dims, start=rank - len(dims)):
                if place >= 0 and product:
                    self._same(merged[place], product)
                    merged[place] = product
        self._give(operation, *(merged for _ in shapes))

    def _made(self, operation: Operation) -> None:
        """Constants of a written shape."""
        for output in operation.outputs:
            self._dims[output] = [fresh(size) for size in output.shape]

    def _regrouped(self, operation: Operation) -> None:
        source = self._of(operation.inputs()[0])
        sizes = list(operation.outputs[0].shape)
        dims = regroup([atom for product in source for atom in product], sizes)
        if dims is None:
            self._unknown(operation)
            return
        self._give(operation, dims)
        self._note_scope(dims)

    def _note_scope(self, dims: Dims) -> None:
        """Note the module outside torch in whose code a shape is written; it may store a number of units."""
        for name in reversed(self._operation.scope):
            if not self._kinds[name].__module__.startswith("torch.nn."):
                for product in dims:
                    for atom in roots(product):
                        atom.scopes.add(name)
                return
            if not self._kinds[name].__module__.startswith("torch.nn.modules.container"):
                return

    def _transposed(self, operation: Operation) -> None:
        dims = list(self._of(operation.inputs()[0]))
        rank = len(dims)
        if operation.name == "permute":
            order = [place % rank for place in operation.args[1]]
            dims = [dims[place] for place in order]
        elif rank > 1:
            one, other = (0, 1) if operation.name in ("t", "t_") else operation.args[1:3]
            dims[one], dims[other] = dims[other], dims[one]
        self._give(operation, dims)

    def _shuffled(self, operation: Operation) -> None:
        """channel_shuffle: [b, groups x channels, ...] to [b, channels x groups, ...]."""
        x, groups = list(self._of(operation.args[0])), operation.args[1]
        parts = regroup(x[1], [groups, operation.args[0].shape[1] // groups])
        if parts is None:
            self._unknown(operation)
            return
        x[1] = (*parts[1], *parts[0])
        self._give(operation, x)

    def _expanded(self, operation: Operation) -> None:
        shape = operation.outputs[0].shape
        source = self._aligned(operation.inputs()[0], len(shape))
        dims = [product or fresh(size) for product, size in zip(source, shape, strict=True)]
        self._give(operation, dims)
        self._note_scope(dims)

    def _repeated(self, operation: Operation) -> None:
        times = operation.args[1]
        source = self._aligned(operation.inputs()[0], len(times))
        self._give(operation, [(*fresh(count), *own) for count, own in zip(times, source, strict=True)])

    def _aligned(self, value: Value, rank: int) -> Dims:
        """The dimensions of `value`, with dimensions of length 1 before them up to `rank`."""
        source = self._of(value)
        return [*(() for _ in range(rank - len(source))), *source]

    def _matmul(self, operation: Operation) -> None:
        """mm, bmm, mv, dot, addmm, baddbmm: the last dimension of one with the last but one of the other."""
        values = [self._of(value) for value in operation.inputs()]
        left, right = values[-2:]
        self._contracts(operation.inputs()[-2:], left[-1])
        if operation.name in ("mv", "addmv", "dot"):
            self._equate(left[-1], right[-1])
            dims = left[:-1]
        else:
            self._equate(left[-1], right[-2])
            dims = [*left[:-1], right[-1]]
            if len(left) == 3:
                self._same(left[0], right[0])
                dims[0] = left[0] or right[0]
        if len(values) == 3:
            for mine, theirs in zip(values[0][::-1], dims[::-1], strict=False):
                self._same(mine, theirs)
        self._give(operation, dims)

    def _contracts(self, values: Sequence[Value], product: Product) -> None:
        """Note that the running operation sums over `product`, which indexes the parameter among `values`."""
        for weight in filter(None, map(parameter_of, values)):
            self.contractions.append(Contraction(self._operation, weight, product))

    def _same(self, one: Product, other: Product) -> None:
        """Equate two dimensions if neither is of length 1."""
        if one and other:
            self._equate(one, other)

    def _convolution(self, operation: Operation) -> None:
        x, weight = (self._of(value) for value in operation.args[:2])
        bias, transposed, groups = operation.args[2], operation.args[6], operation.args[8]
        summed = weight[0] if transposed else weight[1]
        if groups > 1:
            shared, within = fresh(groups), fresh(operation.args[1].shape[0] // groups)
            summed = within if transposed else summed
            self._count(shared, "groups")
            self._equate(weight[0], (*shared, *within))
            self._equate(x[1], (*shared, *(within if transposed else weight[1])))
            out = (*shared, *weight[1]) if transposed else weight[0]
        else:
            self._equate(x[1], weight[0] if transposed else weight[1])
            out = weight[1] if transposed else weight[0]
        self._contracts(operation.args[1:2], summed)
        if isinstance(bias, Value):
            self._same(self._of(bias)[0], out)
        for product in (*x[2:], *weight[2:]):
            self._keep(product, "convolved over")
        sizes = operation.outputs[0].shape
        self._give(operation, [x[0], out, *(self._own(size) for size in sizes[2:])])

    def _count(self, groups: Product, attribute: str) -> None:
        """Note that `attribute` of the running module counts `groups`."""
        if self._operation.scope and groups:
            groups[0].attributes.add(Attribute(self._operation.scope[-1], attribute))

    def _batch_norm(self, operation: Operation) -> None:
        x, *others = (self._of(value) for value in operation.inputs())
        for dims in others:
            self._same(dims[0], x[1])
        count = operation.inputs()[0].shape[1]
        rest = [[x[1]] if output.shape == (count,) else [] for output in operation.outputs[1:]]
        self._give(operation, x, *rest)

    def _layer_norm(self, operation: Operation) -> None:
        x = self._of(operation.args[0])
        normalised = len(operation.args[1])
        for product in x[len(x) - normalised :]:
            self._keep(product, "normalised together")
        for value in operation.inputs()[1:]:
            for mine, theirs in zip(self._of(value), x[len(x) - normalised :], strict=True):
                self._same(mine, theirs)
        self._give(operation, x)

    def _group_norm(self, operation: Operation) -> None:
        x, *others = (self._of(value) for value in operation.inputs())
        groups = operation.args[6]
        shared = fresh(groups)
        self._count(shared, "num_groups")
        within = fresh(operation.inputs()[0].shape[1] // groups, f"normalised together in {self._place()}")
        self._equate(x[1], (*shared, *within))
        for dims in others:
            self._same(dims[0], x[1])
        self._give(operation, x)

    def _spatial(self, operation: Operation) -> None:
        """Pooling, resizing or padding over the last dimensions; the name tells their number."""
        x = self._of(operation.inputs()[0])
        count = int(next(mark for mark in operation.name if mark.isdigit()))
        for product in x[len(x) - count :]:
            self._keep(product, "pooled over")
        results = [
            [*x[: len(x) - count], *(self._own(size) for size in output.shape[len(x) - count :])]
            for output in operation.outputs
        ]
        self._give(operation, *results)

    def _along(self, operation: Operation) -> None:
        x = self._of(operation.inputs()[0])
        place = 2 if operation.name == "roll" else 1
        along = operation.args[place]
        for dim in [along] if isinstance(along, int) else along or range(len(x)):
            self._keep(x[dim], f"used together by {operation.name.strip('_')}")
        self._give(operation, *(x for _ in operation.outputs))

    def _reduced(self, operation: Operation) -> None:
        x = self._of(operation.inputs()[0])
        place = 2 if operation.name in ("norm", "linalg_vector_norm") else 1
        along = operation.args[place] if len(operation.args) > place else None
        if isinstance(along, int):
            along = [along]
        elif not isinstance(along, list | tuple) or not along:
            along = range(len(x))
        reduced = {dim % len(x) for dim in along} if x else set()
        name = operation.name
        linear = name == "sum" and len(reduced) < len(x)
        # A penalty of weights: those of units that a subnet lacks add nothing, as zeros would.
        penalty = name in ("sum", "norm", "linalg_vector_norm") and self._is_penalty(operation)
        for dim in reduced:
            if not (linear or penalty):
                self._keep(x[dim], f"reduced by {name}")
        kept = [() if dim in reduced else product for dim, product in enumerate(x)]
        if len(operation.outputs[0].shape) < len(x):
            kept = [product for dim, product in enumerate(x) if dim not in reduced]
        self._give(operation, *(kept for _ in operation.outputs))

    def _is_penalty(self, operation: Operation) -> bool:
        """Whether `operation` reduces values of parameters alone to a scalar."""
        return operation.outputs[0].shape.numel() == 1 and operation.inputs()[0] in self._constants

    def _padded(self, operation: Operation) -> None:
        x, widths = list(self._of(operation.inputs()[0])), operation.args[1]
        for number in range(len(widths) // 2):
            dim = len(x) - 1 - number
            if widths[2 * number] or widths[2 * number + 1]:
                self._keep(x[dim], "padded")
                x[dim] = self._own(operation.outputs[0].shape[dim])
        self._give(operation, x)

    # Parts of dimensions.

    def _sliced(self, operation: Operation) -> None:
        x = list(self._of(operation.args[0]))
        _, dim, first, _, step = operation.args
        before, after = operation.args[0].shape[dim], operation.outputs[0].shape[dim]
        first = first or 0
        first = max(0, first + before if first < 0 else first)
        if after != before:
            even = step == 1 and after and before % after == 0 and first % after == 0
            part = self._segments(x[dim], before, after) if even else None
            if part is None:
                self._keep(x[dim], f"used in part by {operation.name}")
                part = self._own(after)
            x[dim] = part
        self._give(operation, x)

    def _segments(self, product: Product, length: int, each: int) -> Product | None:
        """One of the equal runs of `each` numbers that a dimension of that length consists of."""
        found = regroup(product, [length // each, each])
        if found is None:
            return None
        self._keep(found[0], f"used in parts by {self._operation.name}")
        return found[1]

    def _divided(self, operation: Operation) -> None:
        """split, split_with_sizes, chunk: runs of one dimension, all of them multiples of the shortest."""
        value, _, dim = operation.args
        x = self._of(value)
        sizes = [output.shape[dim] for output in operation.outputs]
        each = min(sizes)
        part = None
        if each and all(size % each == 0 for size in sizes) and len(sizes) > 1:
            part = self._segments(x[dim], value.shape[dim], each)
        if part is None and len(sizes) > 1:
            self._keep(x[dim], f"used in parts by {operation.name}")
        results = []
        for size in sizes:
            dims = list(x)
            if len(sizes) > 1:
                dims[dim] = self._own(size) if part is None else (*self._own(size // each), *part)
            results.append(dims)
        self._give(operation, *results)

    def _selected(self, operation: Operation) -> None:
        """select, unbind: single numbers of one dimension."""
        x = self._of(operation.args[0])
        dim = operation.args[1] % len(x)
        self._keep(x[dim], f"used one by one by {operation.name}")
        rest = [product for place, product in enumerate(x) if place != dim]
        self._give(operation, *(rest for _ in operation.outputs))

    def _joined(self, operation: Operation) -> None:
        """cat, stack."""
        values = operation.inputs()
        output = operation.outputs[0]
        dim = operation.args[1] % len(output.shape)
        merged: Dims = [() for _ in output.shape]
        for value in values:
            dims = list(self._of(value))
            if operation.name == "stack":
                dims.insert(dim, ())
            elif len(dims) != len(merged):
                continue
            elif len(values) > 1:
                self._keep(dims[dim], "concatenated with others")
            for place, product in enumerate(dims):
                if place != dim and product:
                    self._same(merged[place], product)
                    merged[place] = product
        merged[dim] = fresh(output.shape[dim], f"concatenated with others in {self._place()}")
        if operation.name == "cat" and len(values) == 1:
            merged[dim] = self._of(values[0])[dim]
        self._give(operation, merged)

    def _indexed(self, operation: Operation) -> None:
        """index: some dimensions by tensors of whole numbers."""
        x, places = self._of(operation.args[0]), operation.args[1]
        taken = [dim for dim, index in enumerate(places) if isinstance(index, Value)]
        output = operation.outputs[0]
        new = len(output.shape) - (len(x) - len(taken))
        if not taken or new < 0 or taken != list(range(taken[0], taken[-1] + 1)):
            self._unknown(operation)
            return
        for dim in taken:
            self._keep(x[dim], "used by index")
        made = [self._own(size) for size in output.shape[taken[0] : taken[0] + new]]
        self._give(operation, [*x[: taken[0]], *made, *x[taken[-1] + 1 :]])

    def _index_selected(self, operation: Operation) -> None:
        x, dim = list(self._of(operation.args[0])), operation.args[1]
        self._keep(x[dim], "used by index")
        x[dim] = self._own(operation.outputs[0].shape[dim])
        self._give(operation, x)

    def _embedding(self, operation: Operation) -> None:
        weight, index = (self._of(value) for value in operation.args[:2])
        self._keep(weight[0], "looked up")
        self._give(operation, [*index, weight[1]])

    def _embedding_bag(self, operation: Operation) -> None:
        weight = self._of(operation.args[0])
        self._keep(weight[0], "looked up")
        bags = operation.outputs[0].shape[0]
        self._give(operation, [self._own(bags), weight[1]])

    def _halved(self, operation: Operation) -> None:
        """glu: one half of a dimension times the sigmoid of the other half."""
        value, dim = operation.args
        x = list(self._of(value))
        part = self._segments(x[dim], value.shape[dim], value.shape[dim] // 2)
        if part is None:
            self._unknown(operation)
            return
        x[dim] = part
        self._give(operation, x)

    def _attention(self, operation: Operation) -> None:
        """Queries [.., l, d], keys [.., s, d] and values [.., s, e]: [.., l, e]."""
        query, key, value, *masks = (self._of(one) for one in operation.inputs())
        for mine, theirs, also in zip(query[:-2], key[:-2], value[:-2], strict=True):
            self._same(theirs, also)
            sizes = [math.prod(atom.size for atom in roots(product)) for product in (mine, theirs)]
            if sizes[0] == sizes[1]:
                self._same(mine, theirs)
            elif sizes[1] > 1:  # several queries share a key
                self._equate(mine, (*theirs, *fresh(sizes[0] // sizes[1])))
        self._same(query[-1], key[-1])
        self._same(key[-2], value[-2])
        self._keep(query[-1], "scaled by their number")
        for product in (query[-2], key[-2]):
            self._keep(product, "attended over")
        output = [*query[:-1], value[-1]]
        for mask in masks:
            for mine, theirs in zip(mask[::-1], [key[-2], *query[:-1][::-1]], strict=False):
                self._same(mine, theirs)
        rest = [query[:-1] if len(one.shape) == len(query) - 1 else [] for one in operation.outputs[1:]]
        self._give(operation, output, *rest)


_Rule = Callable[[_Rules, Operation], None]

_NAMES: dict[_Rule, str] = {
    _Rules._pointwise: "_conj _prelu_kernel _to_copy alias bernoulli_ clone contiguous copy copy_ detach detach_ "
    "empty_like fill fill_ full_like lift_fresh masked_fill masked_fill_ native_dropout normal_ ones_like "
    "rand_like randn_like rrelu_with_noise uniform_ zero_ zeros_like "
    # Activations: torch tags not all of them as pointwise.
    "celu celu_ elu elu_ gelu gelu_ hardshrink hardsigmoid hardsigmoid_ hardswish hardswish_ hardtanh hardtanh_ "
    "leaky_relu leaky_relu_ log_sigmoid_forward mish mish_ relu relu_ selu selu_ silu silu_ softplus softshrink "
    "threshold threshold_",
    _Rules._made: "arange empty empty_strided eye full linspace new_empty new_empty_strided new_full new_ones "
    "new_zeros ones rand randint randn randperm scalar_tensor zeros",
    _Rules._regrouped: "_reshape_alias _unsafe_view reshape squeeze squeeze_ unsqueeze unsqueeze_ view view_copy",
    _Rules._transposed: "permute t t_ transpose transpose_",
    _Rules._shuffled: "channel_shuffle native_channel_shuffle",
    _Rules._expanded: "expand expand_copy",
    _Rules._repeated: "repeat",
    _Rules._matmul: "addmm addmv baddbmm bmm dot mm mv",
    _Rules._convolution: "_convolution convolution",
    _Rules._layer_norm: "_fused_rms_norm native_layer_norm",
    _Rules._group_norm: "native_group_norm",
    _Rules._along: "_log_softmax _safe_softmax _softmax cumprod cumsum flip log_softmax logcumsumexp roll softmax",
    _Rules._reduced: "all amax amin any argmax argmin linalg_vector_norm logsumexp max mean median min norm prod "
    "std std_mean sum var var_mean",
    _Rules._padded: "constant_pad_nd",
    _Rules._sliced: "slice slice_copy",
    _Rules._divided: "split split_with_sizes unsafe_split",
    _Rules._selected: "select unbind",
    _Rules._joined: "cat stack",
    _Rules._indexed: "_unsafe_index index",
    _Rules._index_selected: "index_select",
    _Rules._embedding: "embedding",
    _Rules._embedding_bag: "_embedding_bag _embedding_bag_forward_only",
    _Rules._halved: "glu",
}
_RULES = {name: rule for rule, names in _NAMES.items() for name in names.split()}
_PATTERNS = (
    (re.compile(r"_scaled_dot_product"), _Rules._attention),
    (re.compile(r"(cudnn|miopen|native|_native)_batch_norm|_batch_norm_(with|no)_update"), _Rules._batch_norm),
    (
        re.compile(r"_?(adaptive_)?(max|avg)_pool\dd|_?upsample_\w+\dd|re(flection|plication)_pad\dd"),
        _Rules._spatial,
    ),
)
_LAYERS = frozenset(
    ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "convolution", "_convolution", "embedding", "_embedding_bag")
)
