"""Lines on standard error while a command replays."""

import pytest

from istbench.api.replaying import replaying
from istbench.cluster.simulator import simulate


def test_a_long_replay_tells_how_many_runs_are_done(capsys):
    with replaying(line_s=0.0) as tell:
        tell(3, 2_000)
        tell(1_200, 2_000)
    assert capsys.readouterr().err == "replayed 3 of 2,000 runs\nreplayed 1,200 of 2,000 runs\n"


def test_a_short_replay_tells_nothing(capsys):
    with replaying() as tell:
        tell(1, 2)
        tell(2, 2)
    assert capsys.readouterr().err == ""


def line_of_a_wait(capsys):
    said = ""
    with replaying(patience_s=0.0):
        while not said:
            said = capsys.readouterr().err
    return said


@pytest.mark.parametrize("compiles", [True, False])
def test_after_a_while_a_line_says_why_one_waits(monkeypatch, capsys, compiles):
    monkeypatch.setattr(simulate, "compiles", lambda: compiles)
    said = line_of_a_wait(capsys)
    why = "; the first long replay on a machine compiles the simulation, which takes some 15 seconds"
    assert said == f"replaying{why if compiles else ''}\n"


def test_a_simulator_that_another_thread_is_importing_is_no_traceback(monkeypatch, capsys):
    monkeypatch.delattr(simulate, "compiles")
    assert line_of_a_wait(capsys) == "replaying\n"
