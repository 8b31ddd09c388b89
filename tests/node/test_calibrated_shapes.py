"""The matrix products that a machine's speed is measured by."""

from torch import nn

from istbench.node.trace_sample import _CALIBRATED_VALUES, _calibrated_shapes


def shapes_of(*layers: tuple[int, int], batch_size: int = 128) -> list[tuple[int, int]]:
    model = nn.Sequential(*(nn.Linear(inputs, outputs, device="meta") for inputs, outputs in layers))
    return _calibrated_shapes(model, batch_size)


def test_they_are_the_two_largest() -> None:
    assert shapes_of((4096, 4096), (4096, 35), (10, 10)) == [(35, 4096), (4096, 4096)]


def test_a_matrix_that_a_node_need_not_hold_is_cut() -> None:
    for batch_size in (1, 256, 10_000):
        for hidden in (1, 512, 2560):
            for outputs, inputs in shapes_of((hidden, 135_909), (hidden, 670_091), batch_size=batch_size):
                assert max(batch_size * outputs, batch_size * inputs, outputs * inputs) <= _CALIBRATED_VALUES
    assert shapes_of((512, 135_909), (512, 670_091), batch_size=256) == [(32_768, 512)]
    assert shapes_of((25_088, 4096)) == [(668, 25_088)]
