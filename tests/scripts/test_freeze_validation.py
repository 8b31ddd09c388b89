"""The repository's validation: its texts and packaged checks follow from its measurements."""

import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.append(str(SCRIPTS))

import freeze_validation as freeze  # noqa: E402

from istbench.cluster.profile import MessageCosts  # noqa: E402
from istbench.cluster.replay_checks import checks_of, known_checks, packaged_checks  # noqa: E402
from istbench.studies.validation.record import ValidationFiles, read_errors  # noqa: E402
from istbench.studies.validation.table import ReplayError  # noqa: E402


def error(method, replayed, environment=""):
    costs = MessageCosts(message_s=2e-4, next_s=5e-5, cpu_s_per_message=1e-5, cpu_s_per_byte=5e-10)
    return ReplayError(
        method=method, nodes=2, bandwidth="1gbit", repeat=0, measured_s=5.0, replayed_s=replayed,
        recorded_elsewhere_s=5.0, dilation=1.0, data="SYNTHETIC words", doubt="", carrying=costs,
        environment=environment,
    )  # fmt: skip


def test_the_repositorys_texts_and_checks_are_those_of_its_measurements():
    assert freeze.CHECKED.read_bytes() == freeze.checked(freeze.FROZEN)
    assert (freeze.FROZEN / "README.md").read_text() == freeze.page(freeze.FROZEN)
    readme = (freeze.ROOT / "README.md").read_text()
    assert freeze.BEGIN in readme
    assert readme == freeze.with_paragraph(readme, freeze.FROZEN)
    assert freeze.latency_check(freeze.FROZEN / freeze.LATENCY) == packaged_checks().latency
    assert set(known_checks()) == set(checks_of(freeze.errors_in(freeze.FROZEN)))


def test_new_measurements_replace_those_of_their_methods(tmp_path):
    new, frozen = tmp_path / "new", tmp_path / "frozen"
    ValidationFiles(frozen, scaling=False).write([error("ddp", 6.0), error("ist", 5.1)], finished=True)
    ValidationFiles(new, scaling=False).write([error("ddp", 5.0)], finished=True)
    ValidationFiles(new, scaling=True).write([error("ddp", 5.4, "0.5 of a core")], finished=True)
    assert "are not measured yet" in freeze.page(frozen)
    freeze.add(new, frozen)
    kept = {found.method: found.replayed_s for found in read_errors(frozen / "speech-n2.json")}
    assert kept == {"ddp": 5.0, "ist": 5.1}
    page, lines = freeze.page(frozen), freeze.paragraph(frozen)
    assert "other computing speeds, 1 measurements: median 8.0%" in page
    assert "[speech-n2-scaling](speech-n2-scaling.md)" in page
    assert "| ist | speech | 2 | 1gbit | 1 | 2.0% | +2.0% | +2.0% (1gbit on 2 nodes) |" in page
    assert (
        "- 2 measurements of 2 methods on 2 nodes and links of 1gbit to 1gbit:\n  median 1.0%, largest 2.0%"
        in lines
    )
    assert b'"method": "ist"' in freeze.checked(frozen)


def test_measurements_with_late_packets_have_a_folder_of_their_own(tmp_path):
    new, frozen = tmp_path / "new", tmp_path / "frozen"
    ValidationFiles(new, scaling=False, latency_s=0.01).write([error("ddp", 5.5)], finished=True)
    freeze.add(new, frozen)
    (path,) = frozen.rglob("*.json")
    assert path == frozen / freeze.LATENCY / "speech-n2-latency10ms.json"
    assert freeze.latency_words(frozen / freeze.LATENCY) == (
        "On 2 nodes, 10 to 10 ms one way, 1 measurements: median 10.0%, largest +10.0% "
        "(ddp, 2 nodes, 1gbit, 10 ms)."
    )
