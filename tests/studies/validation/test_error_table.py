"""Replay errors in a table and a picture."""

import xml.etree.ElementTree as ElementTree

import pytest

from istbench.base.errors import UserError
from istbench.cluster.profile import MessageCosts
from istbench.studies.validation.record import ValidationFiles, draw_errors, read_errors
from istbench.studies.validation.table import (
    ReplayError,
    by_setting,
    error_table,
    summary_of,
    summary_table,
)

COSTS = MessageCosts(message_s=2e-4, next_s=5e-5, cpu_s_per_message=1e-5, cpu_s_per_byte=5e-10)


def error(
    method="ddp", bandwidth="1gbit", repeat=0, *, replayed=1.0, elsewhere=1.0, dilation=1.0, doubt="", **changed
):
    """A measurement of one second."""
    return ReplayError(
        method=method, nodes=2, bandwidth=bandwidth, repeat=repeat, measured_s=1.0, replayed_s=replayed,
        recorded_elsewhere_s=elsewhere, dilation=dilation, data="SYNTHETIC words, 9 clips", doubt=doubt,
        carrying=COSTS, **changed,
    )  # fmt: skip


def test_an_error_is_replayed_over_measured_less_one():
    found = error(replayed=1.1, elsewhere=0.8)
    assert found.error == pytest.approx(0.1)
    assert found.error_recorded_elsewhere == pytest.approx(-0.2)
    assert found.to_json()["error"] == found.error


def test_repeats_of_one_setting_are_one_row_with_their_median_and_spread():
    errors = [error("ddp", repeat=repeat, replayed=replayed) for repeat, replayed in enumerate([1.02, 0.96, 1.2])]
    errors.insert(1, error("ist", "100mbit", replayed=1.5))
    assert [len(repeats) for repeats in by_setting(errors)] == [3, 1]
    table = error_table(errors, "a title")
    assert [[entry.text for entry in row] for row in table.rows] == [
        ["speech", "ddp", "2", "1gbit", "1.00", "1.02", "+2.0% [-4.0% to +20.0%]", "+0.0% [+0.0% to +0.0%]"],
        ["speech", "ist", "2", "100mbit", "1.00", "1.50", "+50.0%", "+0.0%"],
    ]
    assert [row[6].value for row in table.rows] == [pytest.approx(0.02), pytest.approx(0.5)]


def test_the_footer_has_the_errors_without_their_signs_and_how_slow_the_lab_ran():
    assert summary_of([0.02, -0.04, 0.01]) == "median 2.0%, largest 4.0% without sign; mean -0.3%"
    slow = error(replayed=0.5, elsewhere=1.25, dilation=2.0)
    footer = "\n".join(error_table([error(replayed=1.1), slow], "a title").footer)
    for said in (
        "of 2 measurements: median 30.0%, largest 50.0% without sign; mean -20.0%",
        "median 12.5%, largest 25.0%",
        "2 times slower",
        "Trained on SYNTHETIC words, 9 clips.",
        "for ddp, measured before in the lab, 2 nodes: 200 us a message",
        "errors are those of the network's model alone",
    ):
        assert said in footer
    quick = "\n".join(error_table([error()], "a title").footer)
    assert "slower" not in quick
    assert "Careful" not in quick
    assert "Careful: 1 measurements may be far off: too loud." in error_table([error(doubt="too loud")], "").footer


def test_a_table_of_scaling_has_the_environment_and_the_scale():
    errors = [error(replayed=1.1, elsewhere=1.02, environment="0.5 of a core", scale=2.04)]
    table = error_table(errors, "a title", scaling=True)
    row = {column.key: entry.text for column, entry in zip(table.columns, table.rows[0], strict=True)}
    assert row["environment"] == "0.5 of a core"
    assert (row["error"], row["scale"], row["error_own_trace"]) == ("+10.0%", "2.04", "+2.0%")
    assert "own traces, which have the right computing: median 2.0%" in "".join(table.footer)


def test_the_summary_has_a_row_a_method_without_other_environments():
    errors = [error("ddp", "1gbit", replayed=1.01), error("ddp", "100mbit", replayed=0.93), error("ist")]
    errors.append(error("ist", replayed=9.0, environment="0.5 of a core"))
    table = summary_table(errors, "a title")
    assert [[entry.text for entry in row] for row in table.rows] == [
        ["ddp", "speech", "2", "100mbit to 1gbit", "2", "4.0%", "-3.0%", "-7.0% (100mbit on 2 nodes)"],
        ["ist", "speech", "2", "1gbit", "1", "0.0%", "+0.0%", "+0.0% (1gbit on 2 nodes)"],
    ]
    assert "All 3 measurements: median 1.0%, largest 7.0% without sign" in table.footer[0]


def test_measurements_of_other_methods_stay_in_a_file_and_an_unfinished_run_changes_none(tmp_path):
    files = ValidationFiles(tmp_path, scaling=False)
    files.write([error("ddp"), error("ist", replayed=1.3)], finished=True)
    files.write([error("ist", replayed=1.1), error("ist", replayed=1.2)], finished=True)
    kept = {(found.method, round(found.error, 3)) for found in read_errors(tmp_path / "speech-n2.json")}
    assert kept == {("ddp", 0.0), ("ist", 0.1), ("ist", 0.2)}
    assert "ddp" in (tmp_path / "summary.md").read_text()
    files.write([error("ddp", replayed=5.0)], finished=False)
    assert len(read_errors(tmp_path / "speech-n2.json")) == 3
    assert [found.error for found in read_errors(tmp_path / "speech-n2-unfinished.json")] == [4.0]
    (tmp_path / "speech-n2.json").write_text("[{}]")
    with pytest.raises(UserError, match=r"speech-n2\.json"):
        files.check([("speech", 2)])


def test_the_picture_names_every_method_and_bandwidth_in_order(tmp_path):
    errors = [error("ddp", "1gbit"), error("ist", "100mbit", replayed=1.3), error("mine <b>", "3gbit")]
    png, svg = draw_errors(errors, "a $title", tmp_path / "toy-n2")
    assert png.read_bytes().startswith(b"\x89PNG")
    drawn = "".join(ElementTree.fromstring(svg.read_text()).itertext())
    for said in ("ddp", "ist", "mine <b>", "a $title", "SYNTHETIC words, 9 clips"):
        assert said in drawn
    assert drawn.index("100mbit") < drawn.index("1gbit") < drawn.index("3gbit")


@pytest.mark.parametrize(
    ("network", "stem", "said"),
    [
        ({}, "speech-n2", "speech, 2 nodes"),
        ({"latency_s": 0.03}, "speech-n2-latency30ms", "2 nodes, latency of 30 ms"),
        (
            {"racks": 2, "uplink": 2.5e9, "latency_s": 0.0005},
            "speech-n2-racks2-uplink2.5gbit-latency0.5ms",
            "2 nodes in 2 racks, uplinks of 2.5 Gbit/s, latency of 0.5 ms",
        ),
        ({"host_nodes": 2}, "speech-n2-hosts2", "2 nodes on hosts of 2"),
        (
            {"host_nodes": 2, "inside": 5e9, "latency_s": 0.03},
            "speech-n2-hosts2-inside5gbit-latency30ms",
            "2 nodes on hosts of 2 with 5 Gbit/s inside, latency of 30 ms",
        ),
        ({"scaling": True, "latency_s": 0.03}, "speech-n2-latency30ms-scaling", "2 nodes, latency of 30 ms"),
    ],
)
def test_each_kind_of_network_has_files_and_a_title_of_its_own(tmp_path, network, stem, said):
    files = ValidationFiles(tmp_path, **{"scaling": False, **network})
    measured = [error("ddp", environment="0.5 of a core" if network.get("scaling") else "")]
    assert files.write(measured, finished=True) == [tmp_path / stem]
    assert len(read_errors(tmp_path / f"{stem}.json")) == 1
    assert (tmp_path / f"{stem}.png").exists()
    assert files.title(measured).endswith(said)
