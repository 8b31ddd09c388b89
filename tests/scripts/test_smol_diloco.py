"""The table of smol_diloco, and what it says of the claim."""

import importlib
import sys
from pathlib import Path

import pytest
from test_programs import write_smol_diloco

SCRIPTS = Path(__file__).parents[2] / "scripts" / "bench"


@pytest.fixture
def program(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("smol_diloco")


def test_the_best_rates_and_controls_stand_beside_the_published_ones(program, monkeypatch, tmp_path):
    write_smol_diloco(tmp_path / "results")
    monkeypatch.setattr(sys, "argv", ["smol_diloco.py", str(tmp_path / "results"), str(tmp_path / "target")])
    program.main()
    text = (tmp_path / "target" / "README.md").read_text()
    ours = "2.405 \\[2.400–2.410\\] (0.1) | 2.605 \\[2.600–2.610\\]"
    assert f"| 4 | 2.549 (0.1) | {ours} | {ours} |" in text
    assert (
        "- **nesterov**: best outer learning rates 0.1 and 0.3 for 4 and 16 local steps. The claim holds." in text
    )
    assert "control on one node above that of all nodes (local steps): +0.200 (4) and +0.200 (16)" in text
    assert "- **published**, one seed each: best" not in text
    assert "Too close" not in text
    rows = (tmp_path / "target" / "losses.csv").read_text().splitlines()
    assert len(rows) == 1 + 8
    assert rows[1] == "nesterov,4,0.1,2.405,2.4,2.41,2,2.605,2.6,2.61,2"


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ({1: 0.1, 4: 0.1, 16: 0.3}, "The claim holds"),
        ({1: 0.1, 4: 0.1, 16: 0.3, 64: 0.1}, "does not hold: a longer round has a smaller rate"),
        ({1: 0.3, 4: 0.3}, "does not hold: all are equal"),
    ],
)
def test_the_claim_is_that_rates_rise_with_the_rounds(program, rates, words):
    assert program.claim(rates).endswith(words)
