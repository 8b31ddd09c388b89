"""The sentence of `istbench faults`."""

import pytest

from istbench.report.faulty_runs import FaultResults, FaultRow, FaultSchedule, FaultyRun
from istbench.report.tables.measured_faults import faults_answer
from istbench.results.fault_record import Wall

SCHEDULE = FaultSchedule.of("poisson:2 of kill, seed 0")


def wall(seconds):
    """The wall seconds of a run that only computes."""
    return Wall(
        computing_s=seconds, waiting_s=0.0, fewer_s=0.0, lost_s=0.0, noticing_s=0.0, restarting_s=0.0,
        checkpointing_s=0.0, evaluating_s=0.0,
    )  # fmt: skip


def row(method, *times):
    """A row whose runs take so many times their seconds without faults; None for a miss."""
    runs = tuple(
        FaultyRun(cell=method, seed=seed, hits=(), wall=None if one is None else wall(one), fault_free=wall(1.0))
        for seed, one in enumerate(times)
    )
    return FaultRow(label=method, method=method, nodes=2, schedule=SCHEDULE, runs=runs)


LEAST = "diloco on 2 nodes loses least with 2 faults a run: it takes 1.10 times its seconds without faults, "


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ((row("diloco", 1.1), row("local_sgd", 1.5)), f"{LEAST}local_sgd on 2 nodes 1.50 times, measured."),
        (
            (row("diloco", 1.1), row("local_sgd", 1.5), row("ddp", None)),
            f"{LEAST}local_sgd on 2 nodes 1.50 times, measured; ddp on 2 nodes did not reach its target.",
        ),
        (
            (row("ddp", None, None, 1.2), row("ist", None), row("diloco", 1.1)),
            "diloco on 2 nodes takes 1.10 times its seconds without faults with 2 faults a run, measured; ddp on 2 "
            "nodes reached its target in 1 of 3 runs and ist on 2 nodes did not reach its target.",
        ),
        ((row("ddp", None, 1.2),), "ddp on 2 nodes reached its target in 1 of 2 runs."),
        ((row("ddp", None),), "No run with faults reached its target."),
    ],
)
def test_the_answer_names_the_methods_that_lose_least_most_and_all(rows, said):
    assert faults_answer(FaultResults(rows=rows, first=None)) == said
