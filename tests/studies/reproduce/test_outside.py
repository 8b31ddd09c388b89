"""Predictions of other people's measurements: their errors may not grow."""

import json

import pytest

from istbench.cli import main
from istbench.studies.reproduce.outside import CLASSES, outside_rows

# Predicted over measured. Nothing is fitted: a bound moves when a model of the network changes.
BOUNDS = {
    "slow link": (0.57, 1.19),
    "latency": (0.75, 1.0),
    "several GPUs a host": (0.31, 1.02),
    "parameter server": (0.09, 1.0),
}


@pytest.fixture(scope="module")
def found():
    return outside_rows()


@pytest.mark.parametrize("kind", CLASSES)
def test_errors_of_a_class_stay_within_those_of_today(found, kind):
    low, high = BOUNDS[kind]
    assert all(low <= own.ratio <= high for own in found if own.kind == kind)


def test_links_with_a_checked_rate_are_within_a_fifth(found):
    checked = [own.ratio for own in found if own.nodes == 4 and own.method == "local_sgd"]
    assert len(checked) == 12
    assert all(0.8 < ratio < 1.2 for ratio in checked)


def test_every_row_has_a_prediction(found):
    assert len(found) == 35
    assert {own.kind for own in found} == set(CLASSES)


def test_the_command_writes_the_page_beside_the_one_of_a_checkout(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", "outside", "--json"])
    assert ended.value.code == 0
    first, *tables = json.loads(capsys.readouterr().out)["tables"]
    assert len(first["rows"]) == len(tables) == len(CLASSES)
    page = (tmp_path / "results" / "reproduce-outside" / "README.md").read_text()
    assert "Other people's measurements" in page
    assert (tmp_path / "results" / "reproduce-outside" / "outside.png").stat().st_size > 0
    assert not (tmp_path / "results" / "outside").exists()
