"""Sums over hidden units that no normalisation follows: in a subnet they are a share of the whole sum.

A layer sums over the units that its weight indexes by columns. A subnet with a share of the units computes a share
of the sum. That changes nothing where a normalisation follows: it gives the same result for any scale of the sum.
Elsewhere a subnet multiplies the sum by the inverse of its share, as inverted dropout does.

Whether a normalisation follows is a question of degrees. If the sum grows by a factor, a later value grows by a
power of the factor, its degree: 1 after a ReLU, 2 after a square, 0 after a BatchNorm or a division by a norm. A
value has no degree after a GELU, or after an addition of other activations, such as those of a residual stream. A
sum counts as normalised if all values that depend on it end with degree 0. A factor would change nothing there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from istbench.workloads.neuron_groups.atoms import Atom, Product, roots
from istbench.workloads.neuron_groups.graph import Operation, OperationGraph, Value

_SHAPES = (
    "_reshape_alias _to_copy _unsafe_view alias clone contiguous detach expand permute reshape slice split "
    "split_with_sizes squeeze t transpose unsqueeze view"
)
_NAMES = {
    "same": f"{_SHAPES} _prelu_kernel _unsafe_index abs amax amin channel_shuffle constant_pad_nd cumsum detach_ "
    "expand_copy flip gather index index_select leaky_relu leaky_relu_ lift_fresh linalg_vector_norm max mean "
    "median min native_channel_shuffle native_dropout neg neg_ norm prelu relu relu_ repeat roll select slice_copy "
    "squeeze_ std sum t_ transpose_ unbind unsafe_split unsqueeze_ view_copy",
    "square": "square var",
    "root": "sqrt sqrt_",
    "inverse root": "rsqrt rsqrt_",
    "inverse": "reciprocal",
    "product": "bmm dot mm mul mul_ mv",
    "product and sum": "addmm addmv baddbmm",
    "convolution": "_convolution convolution",
    "quotient": "div div_",
    "terms": "add add_ cat rsub stack sub sub_ where",
    "normalised": "_fused_rms_norm native_group_norm native_layer_norm",
    "scale-free": "argmax argmin empty_like eq full_like ge gt le lt ne ones_like sgn sign zeros_like",
}
_KIND = {name: kind for kind, names in _NAMES.items() for name in names.split()}
_POWER = {"same": 1.0, "square": 2.0, "root": 0.5, "inverse root": -0.5, "inverse": -1.0}
_VIEWS = frozenset(_SHAPES.split())
_LEAST = 1e-3  # a smaller bound keeps a divisor from zero, as in torch's normalize


@dataclass(frozen=True)
class Contraction:
    """An operation that sums over the numbers of `product`, an index of parameter `weight`."""

    operation: Operation
    weight: str
    product: Product


def parameter_of(value: Value) -> str:
    """The name of the parameter or buffer that `value` shows in another shape; empty if it is computed."""
    while not value.name and value.maker is not None and value.maker.name in _VIEWS:
        value = value.maker.inputs()[0]
    return value.name


class Sums:
    """The sums of a graph: `contractions` of its operations."""

    def __init__(self, graph: OperationGraph, contractions: Sequence[Contraction]) -> None:
        self._graph, self._contractions = graph, contractions
        self._constants = graph.constants()

    def over(self, atom: Atom) -> tuple[str, ...]:
        """The parameters by which layers sum over the units of `atom`, where no normalisation is behind the sum."""
        found = [one for one in self._contractions if atom in roots(one.product)]
        return tuple(dict.fromkeys(one.weight for one in found if not self._normalised(one.operation)))

    def _normalised(self, operation: Operation) -> bool:
        """Whether the result of the run is the same for any scale of the results of `operation`."""
        degrees: dict[Value, float] = dict.fromkeys(operation.outputs, 1.0)
        for later in self._graph.operations[self._graph.operations.index(operation) + 1 :]:
            if not any(value in degrees for value in later.inputs()):
                continue
            degree = self._degree(later, degrees)
            if degree is None or (degree and any(old not in degrees for old, _ in later.aliases)):
                return False
            if degree:
                degrees.update(dict.fromkeys((*later.outputs, *(new for _, new in later.aliases)), degree))
        return self._graph.result not in degrees

    def _degree(self, operation: Operation, degrees: dict[Value, float]) -> float | None:
        """The degree of the results of `operation`, None if there is none."""
        name, args = operation.name, operation.args
        kind = "same" if "_pool" in name or "upsample" in name else _KIND.get(name, "")
        own = [degrees.get(value, 0.0) for value in operation.inputs()]
        if kind in _POWER:
            return own[0] * _POWER[kind]
        if kind in ("normalised", "scale-free"):
            return 0.0
        if kind == "product":
            return sum(own)
        if kind == "product and sum":
            return None if own[0] else sum(own)
        if kind == "convolution":
            return own[0] + own[1]
        if kind == "quotient":
            return own[0] - sum(own[1:])
        if kind == "terms":
            return self._degree_of_terms(operation.inputs(), degrees)
        if "batch_norm" in name:
            frozen = "no_training" in name or (len(args) > 5 and args[5] is False)
            return own[0] if frozen else 0.0
        if name in ("pow", "pow_"):
            return own[0] * args[1] if isinstance(args[1], int | float) else None
        if name in ("clamp", "clamp_min"):
            low, *high = args[1:]
            bounded = any(bound is not None for bound in high)
            return own[0] if not bounded and isinstance(low, int | float) and 0 <= low <= _LEAST else None
        return None

    def _degree_of_terms(self, terms: Sequence[Value], degrees: dict[Value, float]) -> float | None:
        """The common degree of `terms`. Constants, such as a bias, count as having it."""
        own = {degrees[term] for term in terms if term in degrees}
        others = all(term in self._constants for term in terms if term not in degrees)
        return own.pop() if len(own) == 1 and others else None
