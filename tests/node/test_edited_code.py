"""A worker refuses a plug-in that changed after the launcher named the cell."""

import msgspec
import pytest

from istbench.base.errors import UserError
from istbench.base.options.run import RunRequest
from istbench.launch.cells.resolve import prepare_cell
from istbench.node import worker

WORKLOAD = "from istbench.workloads.toy import Toy\nclass Mine(Toy):\n    name = 'mine'\n"


class Connects(Exception):  # noqa: N818  (not an error)
    """The worker would meet the others now."""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    def connect(**_):
        raise Connects

    monkeypatch.setattr(worker, "connect", connect)
    (tmp_path / "mine.py").write_text(WORKLOAD)
    return tmp_path / "mine.py"


def train(plugin, *, workload="mine", edited=False, **changed):
    """Train the cell of `plugin`, `edited` since, with these fields of its configuration `changed`."""
    cell = prepare_cell(RunRequest(workload=workload, method="ddp", plugins=(str(plugin),)), lambda *_: None)
    config = msgspec.structs.replace(cell.config, **changed)
    header = msgspec.structs.replace(cell, config=config)
    if edited:
        plugin.write_text(WORKLOAD + "# edited\n")
    worker.train_cell(str(plugin.parent / "run"), str(plugin.parent), header)


def test_a_plug_in_that_changed_since_its_cell_was_named_is_refused(plugin):
    with pytest.raises(
        UserError, match=r"^/\S+/mine\.py changed since this cell was named; undo the change, or run"
    ):
        train(plugin, edited=True)


@pytest.mark.parametrize(
    "given", [{}, {"edited": True, "code": ""}, {"edited": True, "workload": "toy"}], ids=["same", "unknown", "own"]
)
def test_code_that_is_the_same_or_not_known_trains(plugin, given):
    """Headers of before record no code; the code of istbench itself is not compared."""
    with pytest.raises(Connects):
        train(plugin, **given)
