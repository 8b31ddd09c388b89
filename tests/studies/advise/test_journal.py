"""The journal of a question: what a command resumes from."""

import pytest

from istbench.base.errors import UserError
from istbench.studies.advise.halving import Rung
from istbench.studies.advise.journal import Journal, ProbeFailed, ProbeTrained, RungStarted, StepRecorded

RUNG = Rung(steps=100, every=10, seeds=(0,), labels=("ddp", "ist"))


def test_another_command_reads_the_rungs_the_cells_and_the_seconds(tmp_path):
    first = Journal.of(tmp_path, {"nodes": 2})
    first.add(RungStarted(rung=RUNG))
    first.add(ProbeTrained(label="ddp", steps=100, seed=0, cell="toy-ddp-n2-s0-1234"))
    first.spend(4.0)
    first.spend(7.5)  # of the same command: the last line counts
    again = Journal.of(tmp_path, {"nodes": 2})
    assert (again.rungs, again.spent_s) == ([RUNG], 7.5)
    assert again.cells == {("ddp", 100, 0): "toy-ddp-n2-s0-1234"}
    assert Journal.of(tmp_path, {"nodes": 4}).rungs == [], "another question has a journal of its own"


def test_another_command_knows_the_probes_that_failed(tmp_path):
    reason = "diverged: loss nan in step 3"
    Journal.of(tmp_path, 1).add(ProbeFailed(label="ist", steps=100, seed=0, reason=reason))
    assert Journal.of(tmp_path, 1).failures == {("ist", 100, 0): reason}


def test_the_seconds_of_two_commands_add_up_though_they_have_the_same_process_id(tmp_path):
    first, second = Journal.of(tmp_path, 1), Journal.of(tmp_path, 1)
    first.spend(4.0)
    second.spend(3.0)
    first.spend(5.0)
    assert Journal.of(tmp_path, 1).spent_s == 8.0


def test_the_cell_of_step_one_is_kept_apart_from_the_probes(tmp_path):
    first = Journal.of(tmp_path, 1)
    assert first.recorded is None
    first.add(StepRecorded(cell="toy-ddp-n1-s0-1234"))
    again = Journal.of(tmp_path, 1)
    assert (again.recorded, again.cells) == ("toy-ddp-n1-s0-1234", {})


def test_a_line_torn_by_a_crash_is_cut_off(tmp_path):
    first = Journal.of(tmp_path, 1)
    first.add(RungStarted(rung=RUNG))
    with first.path.open("ab") as file:
        file.write(b'{"type":"spent","comm')
    again = Journal.of(tmp_path, 1)
    assert again.rungs == [RUNG]
    again.spend(1.0)
    assert Journal.of(tmp_path, 1).spent_s == 1.0


@pytest.mark.parametrize(
    "line",
    [b"{}", b"null", b'{"type":"spent","command":"1","seconds":-1}', b'{"type":"planned","rung":{}}', b"\xff"],
)
def test_garbage_ends_in_one_line_that_names_the_file(tmp_path, line):
    journal = Journal.of(tmp_path, 1)
    journal.path.parent.mkdir()
    journal.path.write_bytes(line + b"\n")
    with pytest.raises(UserError, match=r"jsonl, line 1.*delete") as found:
        Journal.of(tmp_path, 1)
    assert "\n" not in str(found.value)
