"""The matrix products that a machine's speed is measured by."""

import math

import pytest

from istbench.node.step_work import USUAL_SHAPE
from istbench.node.trace_sample import calibrated_shapes


def test_they_are_the_two_largest() -> None:
    shapes = [(128, 1024, 1024), (128, 1024, 35), (64, 10, 10)]
    assert calibrated_shapes(shapes, "cpu") == tuple(shapes[:2])
    assert calibrated_shapes(shapes[:1], "cpu") == ((128, 1024, 1024),) * 2


def test_a_step_without_products_has_usual_ones() -> None:
    assert calibrated_shapes([], "cpu") == ((256, 1024, 1024),) * 2


def test_a_larger_product_stands_for_convolutions_on_a_gpu() -> None:
    assert calibrated_shapes([USUAL_SHAPE, (64, 512, 512)], "cuda") == ((2048, 2048, 2048), (64, 512, 512))
    assert calibrated_shapes([], "cuda") == ((2048, 2048, 2048),) * 2


@pytest.mark.parametrize(("device", "most"), [("cpu", 1 << 28), ("cuda", 1 << 33)])
@pytest.mark.parametrize(
    "shape",
    [
        (65_536, 144, 16),
        (256, 512, 670_091),
        (10_000, 670_091, 2560),
        (1, 1 << 40, 3),
        (1 << 40, 2, 1),
        (256, 512, 8),
    ],
)
def test_a_product_that_takes_long_is_cut(shape, device, most) -> None:
    (cut, _) = calibrated_shapes([shape], device)
    rows, inner, columns = cut
    assert all(1 <= size <= whole for size, whole in zip(cut, shape, strict=True))
    assert max(rows * inner, inner * columns, rows * columns) <= 1 << 24
    assert math.prod(cut) <= most
