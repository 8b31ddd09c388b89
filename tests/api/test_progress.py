"""What the progress line says of a run."""

import re
import time

import pytest
from fake_runs import evaluation, header, resume, start, write_run

from istbench.api import progress
from istbench.api.progress import Display, _state
from istbench.base.activity import Progress
from istbench.results.metrics import Metric


def test_the_progress_line_says_at_which_step_it_was_evaluated(results):
    run = write_run(results, header(status="running"), [evaluation(0, 0.0, 0.1)])
    assert _state(run.events(), Metric("accuracy")) == "accuracy 0.1000 at 0"
    run.append(evaluation(500, 9.0, 0.4312, loss=1.2034))
    assert _state(run.events(), Metric("accuracy")) == "accuracy 0.4312, loss 1.203 at 500"
    run.append(evaluation(600, 9.0, None))
    assert _state(run.events(), Metric("accuracy")) == "accuracy not a number, loss 1.000 at 600"
    run.append(resume(500))
    assert _state(run.events(), Metric("accuracy")) == "accuracy 0.4312, loss 1.203 at 500"
    run.append(start())
    assert _state(run.events(), Metric("accuracy")) == "starting"


@pytest.mark.parametrize("options", ["", "local_steps=16 outer_lr=0.7 outer_rule=smol schedule=constant"])
def test_lines_of_progress_have_their_figures_and_at_most_80_columns(results, monkeypatch, capsys, options):
    run = write_run(results, header(status="running", options=options), [evaluation(500, 9.0, 0.4312, loss=1.2034)])
    monkeypatch.setattr(progress, "_PLAIN_LINE_S", 0.0)
    steps = iter([499])
    monkeypatch.setattr(progress, "read_progress", lambda _scratch: Progress(step=next(steps, 500)))
    with Display() as display:
        display.place = "cell 2 of 3"
        with display.training(run.header(), run):
            time.sleep(0.8)
    first, *lines = capsys.readouterr().err.splitlines()
    assert ": step 499/1000, accuracy" in first  # one reading tells no speed
    assert lines
    for line in lines:
        assert len(line) <= 80
        assert line.startswith("cell 2 of 3: ddp")
        assert re.search(r": step 500/1000, \d+:\d\d left", line)
        assert line.endswith(" left, accuracy 0.4312, loss 1.203 at 500")


def test_the_time_left_of_a_resumed_run_follows_its_speed_and_not_its_steps(results, monkeypatch, capsys):
    run = write_run(results, header(status="running"), [evaluation(900, 9.0, 0.4)])
    monkeypatch.setattr(progress, "_PLAIN_LINE_S", 0.0)
    monkeypatch.setattr(progress, "_POLL_S", 0.05)
    steps = iter(range(900, 1000))
    monkeypatch.setattr(progress, "read_progress", lambda _scratch: Progress(step=next(steps)))
    with Display() as display, display.training(run.header(), run):
        time.sleep(0.6)
    (second, *_) = re.findall(r"step 90[1-9]/1000, (\d+):(\d\d) left", capsys.readouterr().err)
    assert int(second[0]) * 60 + int(second[1]) >= 4  # 90 steps or more of 0.05 s or more
