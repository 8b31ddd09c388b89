"""How the fault table judges a message. test_programs.py makes one row of it on real hosts."""

import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts" / "bench"
sys.path.append(str(SCRIPTS))

from fault_table import PHASES, Fault, Row, faults, lacking, summary  # noqa: E402

STOPPED = Fault("SIGSTOP for good", "exchanging", 1)
LOST = Fault("link down for good", "checkpointing", 0)
GOOD = (
    "host1: rank 1 was silent for 10 s in exchanging subnets; mend that, and the same command goes on from step 16"
)


def test_each_fault_is_in_each_phase_on_rank_0_and_on_another():
    rows = faults()
    assert len(set(rows)) == len(rows) == 63
    for what in {row.what for row in rows} - {"disk full"}:
        found = {(row.phase, row.rank) for row in rows if row.what == what}
        assert found == {(phase, rank) for phase in PHASES for rank in (0, 1)}


@pytest.mark.parametrize(
    ("fault", "said", "resumed", "lacks"),
    [
        (STOPPED, GOOD, "16", []),
        (STOPPED, GOOD.replace("host1", "host2"), "16", ["the host (blames host2)"]),
        (STOPPED, GOOD.replace("host1: ", ""), "16", ["the host"]),
        (STOPPED, GOOD.replace(" in exchanging subnets", ""), "16", ["the operation"]),
        (STOPPED, GOOD.partition(";")[0], "16", ["a way out"]),
        (STOPPED, f"{GOOD}\n  its last line", "16", ["one line (has 2)"]),
        (STOPPED, GOOD.replace("step 16", "the last checkpoint"), "0", ["promises a checkpoint that is not there"]),
        (LOST, "host0: lost; the same command goes on from the last checkpoint", "16",
         ["the operation", "a way out by other hosts"]),
        (LOST, "host0: lost in writing a checkpoint; name other hosts", "16", []),
    ],
)  # fmt: skip
def test_what_a_message_lacks(fault, said, resumed, lacks):
    assert lacking(fault, said, resumed) == lacks


def test_the_summary_counts_rows_that_came_out_well():
    rows = [
        Row(STOPPED, noticed_s=12.0, status=1, said=GOOD, resumed="16", same=True),
        Row(LOST, noticed_s=None, status=130, resumed="0", same=True, left=["python"]),
        Row(Fault("SIGSTOP 20 s", "training", 0), noticed_s=25.0, status=0, same=True),
        Row(Fault("link down 5 s", "training", 0), noticed_s=5.0, status=1, lacks=["the host"], resumed="16"),
        Row(STOPPED, wrong="no row"),
    ]
    assert summary(rows).splitlines() == [
        "- noticed in time: 3 of 4",
        "- continued, of runs that must survive: 1 of 2",
        "- complete and right messages: 1 of 3",
        "- ended with the digest of a run without a fault: 3 of 4",
        "- nothing left running: 3 of 4",
        "- rows that could not be made: 1",
    ]
