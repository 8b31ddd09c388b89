"""Products of active rows with the samples that use them, and updates of these rows.

A pass reads the rows in order, each once; the few vectors of a batch stay in the processor's cache. Threads work on
blocks of rows at the same time. Each block adds to its own copy of the vectors. The copies are then summed in
the order of blocks, so the result is the same for any number of threads.

Active rows lie apart: the processor foresees the lines of a row only when it has read the first of them. So a pass
begins to fetch a row while it works on an earlier one.
"""

import math
from enum import IntEnum
from typing import Any

import numpy as np

from istbench.base.jit import load_numba
from istbench.methods.slide.active import BLOCKS, Pairs
from istbench.methods.slide.threads import Threads, kernel, part


class Rule(IntEnum):
    """The update rule of rows.

    SGD and LAZY_ADAM update only rows that a sample uses; moments of other rows stay. ADAM updates all rows, as
    torch.optim.Adam does; LAZY_ADAM is torch.optim.SparseAdam.
    """

    SGD = 1
    LAZY_ADAM = 2
    ADAM = 3


_EPSILON = 1e-8  # of Adam


class RowOptimizer:
    """The optimizer of weight [n, width] and bias [n]; betas: Adam's decay rates.

    Attributes:
        steps: their number so far. moments: float32 [2, n, width], Adam's first and second; bias_moments: float32
            [2, n]. SGD has no rows in either.
    """

    def __init__(self, rule: Rule, weight: np.ndarray, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        self.rule, self.steps = rule, 0
        self._beta1, self._beta2 = betas
        rows, width = (0, 0) if rule == Rule.SGD else weight.shape
        self.moments = np.zeros((2, rows, width), np.float32)
        self.bias_moments = np.zeros((2, rows), np.float32)

    def next_rates(self, lr: float) -> np.ndarray:
        """Count a step with learning rate `lr`; returns the factors of `kernels.backward`, float32 [7]."""
        self.steps += 1
        if self.rule == Rule.SGD:
            return np.array([lr, 0, 0, 0, 0, 0, 0], np.float32)
        beta1, beta2 = self._beta1, self._beta2
        first, second = 1 - beta1**self.steps, 1 - beta2**self.steps
        numbers = (lr / first, 1 / math.sqrt(second), beta1, 1 - beta1, beta2, 1 - beta2)
        return np.array([*numbers, _EPSILON], np.float32)


def row_outputs(
    weight: np.ndarray, bias: np.ndarray, vectors: np.ndarray, pairs: Pairs, threads: Threads
) -> np.ndarray:
    """For every pair, the product of its row and its sample's vector, plus the row's bias: float32 [pairs].

    Args:
        weight: float32 [n, width]. bias: float32 [n]. vectors: float32 [b, width].
    """
    outputs = np.empty(len(pairs), np.float32)

    def block(number: int) -> None:
        first, last = pairs.edges[number], pairs.edges[number + 1]
        _outputs(weight, bias, vectors, pairs.rows, pairs.starts, pairs.samples, first, last, outputs)

    threads.run(block, BLOCKS)
    return outputs


def backward(
    weight: np.ndarray,
    bias: np.ndarray,
    vectors: np.ndarray,
    slopes: np.ndarray,
    pairs: Pairs,
    optimizer: RowOptimizer,
    lr: float,
    threads: Threads,
) -> np.ndarray:
    """Compute the gradient of `vectors` by the old weights and update the rows, in one pass over them.

    Args:
        weight: float32 [n, width], updated. bias: float32 [n], updated.
        vectors: float32 [b, width]. slopes: float32 [pairs], the gradient of `row_outputs`.
        lr: the learning rate of this step.

    Returns:
        float32 [b, width].
    """
    parts = np.empty((BLOCKS, *vectors.shape), np.float32)
    state = (optimizer.next_rates(lr), *optimizer.moments, *optimizer.bias_moments)
    edges, rows, passed = pairs.edges, pairs.rows, _BACKWARD[optimizer.rule]

    def row_at(number: int) -> int:
        return int(rows[number]) if number < len(rows) else len(weight)

    def block(number: int) -> None:
        first, last = edges[number], edges[number + 1]
        first_row = row_at(first) if number > 0 else 0
        passed(
            weight, bias, vectors, rows, pairs.starts, pairs.samples, slopes, first, last, first_row, row_at(last),
            parts[number], state,
        )  # fmt: skip

    threads.run(block, BLOCKS)
    total = parts[0]
    for of_block in parts[1:]:
        total += of_block
    return total


AHEAD = 2
"""Rows from the one at work to the one to fetch. With 1 to 16 a step takes the same time."""

_LINE = 64  # bytes
_TO_WRITE, _INTO_ALL_CACHES, _DATA = 1, 3, 1  # arguments of LLVM's prefetch

numba = load_numba()


@numba.extending.intrinsic
def _fetch(_: Any, table: Any, row: Any, entry: Any) -> Any:
    """Fetch the line with the entry at [row, entry] of `table`."""
    from llvmlite import ir  # type: ignore[import-untyped]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        of_table, *of_places = signature.args
        places = [
            context.cast(builder, value, kind, numba.types.intp)
            for value, kind in zip(arguments[1:], of_places, strict=True)
        ]
        own = context.make_array(of_table)(context, builder, arguments[0])
        pointer = numba.core.cgutils.get_item_pointer(context, builder, of_table, own, places)
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        how = [number(value) for value in (_TO_WRITE, _INTO_ALL_CACHES, _DATA)]
        builder.call(function, [builder.bitcast(pointer, byte), *how])
        return context.get_dummy_value()

    return numba.types.void(table, row, entry), generate


@part
def fetch_row(table: np.ndarray, row: int) -> None:
    """Begin to bring `row` of `table` [n, width] to the cache, and go on at once."""
    for entry in range(0, table.shape[1], _LINE // table.itemsize):
        _fetch(table, row, entry)


@kernel
def _outputs(
    weight: np.ndarray,
    bias: np.ndarray,
    vectors: np.ndarray,
    rows: np.ndarray,
    starts: np.ndarray,
    samples: np.ndarray,
    first: int,
    last: int,
    outputs: np.ndarray,
) -> None:
    """Fill in the outputs of the pairs of rows[first:last]."""
    for number in range(first, last):
        row = rows[number]
        fetch_row(weight, rows[min(number + AHEAD, last - 1)])
        for pair in range(starts[number], starts[number + 1]):
            sample = samples[pair]
            product = np.float32(0)
            for entry in range(weight.shape[1]):
                product += weight[row, entry] * vectors[sample, entry]
            outputs[pair] = product + bias[row]


def _backward_by(rule: Rule) -> Any:
    """The pass of `backward` by `rule`, compiled for it alone: one for any rule takes a third longer."""
    moves, all_rows = rule != Rule.SGD, rule == Rule.ADAM  # constants of the compiled function

    @kernel
    def passed(
        weight: np.ndarray,
        bias: np.ndarray,
        vectors: np.ndarray,
        rows: np.ndarray,
        starts: np.ndarray,
        samples: np.ndarray,
        slopes: np.ndarray,
        first: int,
        last: int,
        first_row: int,
        last_row: int,
        of_vectors: np.ndarray,
        state: tuple[np.ndarray, ...],
    ) -> None:
        """Fill `of_vectors` with the sums over rows[first:last]; update these, and the rows between if `all_rows`.

        `state` is `next_rates`, and the moments of weight and bias.
        """
        rates, moments, squares = state[0], state[1], state[2]
        width = weight.shape[1]
        gradient, zeros = np.empty(width, np.float32), np.zeros(width, np.float32)
        none = np.float32(0)
        of_vectors[:] = 0
        idle = first_row
        for number in range(first, last):
            row, later = rows[number], rows[min(number + AHEAD, last - 1)]
            fetch_row(weight, later)
            if all_rows:
                for other in range(idle, row):
                    _update(weight, bias, other, zeros, none, state)
                idle = row + 1
            gradient[:] = 0
            of_bias = none
            for pair in range(starts[number], starts[number + 1]):
                sample, slope = samples[pair], slopes[pair]
                of_bias += slope
                for entry in range(width):
                    of_vectors[sample, entry] += slope * weight[row, entry]
                for entry in range(width):
                    gradient[entry] += slope * vectors[sample, entry]
            if moves:  # three rows fetched at once would hold the reads up
                fetch_row(moments, later)
                _update(weight, bias, row, gradient, of_bias, state)
                fetch_row(squares, later)
            else:
                for entry in range(width):
                    weight[row, entry] -= rates[0] * gradient[entry]
                bias[row] -= rates[0] * of_bias
        if all_rows:
            for other in range(idle, last_row):
                _update(weight, bias, other, zeros, none, state)

    return passed


@part
def _update(
    weight: np.ndarray,
    bias: np.ndarray,
    row: int,
    gradient: np.ndarray,
    of_bias: np.float32,
    state: tuple[np.ndarray, ...],
) -> None:
    """Update a row by its gradient as Adam does."""
    rates, moments, squares, bias_moments, bias_squares = state
    rate, root, epsilon = rates[0], rates[1], rates[6]
    keep, take, keep_square, take_square = rates[2], rates[3], rates[4], rates[5]
    for entry in range(weight.shape[1]):
        slope = gradient[entry]
        moment = keep * moments[row, entry] + take * slope
        square = keep_square * squares[row, entry] + take_square * slope * slope
        moments[row, entry] = moment
        squares[row, entry] = square
        weight[row, entry] -= rate * moment / (np.sqrt(square) * root + epsilon)
    moment = keep * bias_moments[row] + take * of_bias
    square = keep_square * bias_squares[row] + take_square * of_bias * of_bias
    bias_moments[row] = moment
    bias_squares[row] = square
    bias[row] -= rate * moment / (np.sqrt(square) * root + epsilon)


_BACKWARD = {rule: _backward_by(rule) for rule in Rule}
