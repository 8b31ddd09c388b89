"""Rows of a table, brought to the processor's cache before a kernel reads them.

Active rows lie apart: the processor foresees the lines of a row only when it has read the first of them.
"""

from typing import Any

import numpy as np

from istbench.base.jit import load_numba
from istbench.methods.slide.threads import part

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
