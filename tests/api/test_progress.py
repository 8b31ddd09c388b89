"""What the progress line says of a run."""

import re
import threading
from itertools import count
from types import SimpleNamespace

import pytest
from fake_runs import evaluation, header, resume, start, write_run

from istbench.api import progress
from istbench.api.progress import Display
from istbench.base.activity import Progress


@pytest.fixture
def lines(monkeypatch, capsys):
    """Shows the progress of a run at these steps, one after the other; returns a line for each."""

    def shown(run, *steps, place=""):
        left, over = list(steps), threading.Event()

        def read(_scratch):
            step = left.pop(0) if len(left) > 1 else left[0]
            if step == steps[-1]:
                over.set()
            return Progress(step=step)

        clock = count(100.0, 8.0)  # two readings for each line, which come every 15 s
        monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        monkeypatch.setattr(progress, "read_progress", read)
        with Display() as display:
            display.place = place
            with display.training(run.header(), run):
                over.wait()
        return capsys.readouterr().err.splitlines()

    return shown


def test_the_progress_line_says_at_which_step_it_was_evaluated(results, lines):
    run = write_run(results, header(status="running"), [evaluation(0, 0.0, 0.1)])

    def state():
        return lines(run, 700)[-1].partition(": step 700/1000, ")[2]

    assert state() == "accuracy 0.1000 at 0"
    run.append(evaluation(500, 9.0, 0.4312, loss=1.2034))
    assert state() == "accuracy 0.4312, loss 1.203 at 500"
    run.append(evaluation(600, 9.0, None))
    assert state() == "accuracy not a number, loss 1.000 at 600"
    run.append(resume(500))
    assert state() == "accuracy 0.4312, loss 1.203 at 500"
    run.append(start())
    assert state() == "starting"


@pytest.mark.parametrize("options", ["", "local_steps=16 outer_lr=0.7 outer_rule=smol schedule=constant"])
def test_lines_of_progress_have_their_figures_and_at_most_80_columns(results, lines, options):
    run = write_run(results, header(status="running", options=options), [evaluation(500, 9.0, 0.4312, loss=1.2034)])
    first, *others = lines(run, 400, 500, place="cell 2 of 3")
    assert ": step 400/1000, accuracy" in first  # one reading tells no speed
    assert others
    for line in others:
        assert len(line) <= 80
        assert line.startswith("cell 2 of 3: ddp")
        assert re.search(r": step 500/1000, \d+:\d\d left", line)
        assert line.endswith(" left, accuracy 0.4312, loss 1.203 at 500")


def test_the_time_left_of_a_resumed_run_follows_its_speed_and_not_its_steps(results, lines):
    run = write_run(results, header(status="running"), [evaluation(900, 9.0, 0.4)])
    _, second, *_ = lines(run, 900, 901)
    assert ": step 901/1000, 26:24 left" in second  # 99 steps of 16 s


def test_a_note_is_printed_as_it_is(capsys):
    with Display() as display:
        display.note("wrote a:100:b [bold]")
        display.preparing("a\x1b[2Jb", 0, 1)
    assert capsys.readouterr().err.splitlines() == ["wrote a:100:b [bold]", "a?[2Jb: 0/1"]
