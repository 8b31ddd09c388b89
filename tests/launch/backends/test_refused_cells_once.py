"""The lines for cells that failed."""

from istbench.base.errors import RunFailed, UserError
from istbench.launch.backends.backend import Outcome, failure_lines


def test_a_failure_of_several_cells_is_one_line():
    lost, diverged = UserError("berta: ssh does not reach it"), RunFailed("the loss is nan")
    cells = [
        Outcome(cell=name, failure=why) for name, why in (("a", lost), ("b", diverged), ("c", lost), ("d", None))
    ]
    assert failure_lines(cells) == ["a and 1 more cell: berta: ssh does not reach it", "b: the loss is nan"]
