"""How far the replays of a method are off: from measurements, and from what comes with istbench."""

import json

import msgspec
import pytest
from garbage import as_json, damaged, one_line, quick
from hypothesis import given

from istbench.base.errors import UserError
from istbench.cluster.replay_checks import (
    Check,
    Measurement,
    checks_in,
    checks_of,
    known_checks,
    packaged_checks,
    read_measurements,
    replay_check,
)
from istbench.report.phrases import latency_line


def measured(method="mine", error=0.0, *, bandwidth="1gbit", nodes=2, **changed):
    return Measurement(
        method=method, nodes=nodes, bandwidth=bandwidth, measured_s=2.0, replayed_s=2.0 * (1 + error), **changed
    )


def test_a_check_has_the_range_the_median_and_the_error_furthest_from_zero():
    found = checks_of(
        [
            measured(error=0.01, bandwidth="300mbit"),
            measured(error=-0.06, nodes=4, workload="toy"),
            measured(error=0.02, bandwidth="1.5gbit"),
            measured(error=0.9, environment="half a core a node"),
            measured("other"),
        ]
    )
    assert list(found) == ["mine", "other"]
    check = found["mine"]
    assert (check.slowest, check.fastest) == ("300mbit", "1.5gbit")
    assert (check.nodes, check.workloads, check.measurements) == ((2, 4), ("speech", "toy"), 3)
    assert (check.median, check.mean) == (pytest.approx(0.02), pytest.approx(-0.01))
    assert (check.largest, check.where) == (pytest.approx(-0.06), "1gbit on 4 nodes")


@pytest.mark.parametrize(("error", "off"), [(0.04, False), (-0.06, True), (0.06, True)])
def test_a_replay_over_five_percent_off_is_told(error, off):
    assert replay_check("mine", checks_of([measured(error=error)])).check.is_off == off
    assert replay_check("mine", {}).check is None
    assert replay_check("mine", {}).check is None


def test_replays_at_long_latencies_tell_how_far_they_were_off():
    check = packaged_checks().latency
    assert (check.least_s, check.most_s) == (0.0025, 0.025)
    assert 0 < check.median < 0.05 < abs(check.furthest)
    (line,) = latency_line(0.001)
    off = f"{check.median:.1%} off a lab in the median, {check.furthest:+.1%} at most"
    assert f"at latencies of 2.5 to 25 ms, {check.measurements} replays were {off}" in line
    assert not list(latency_line(0.0009))


def test_the_users_own_check_replaces_that_of_istbench():
    assert replay_check("ddp", {}).check == known_checks()["ddp"]
    own = checks_of([measured("ddp", 0.5)])
    assert replay_check("ddp", own).check == own["ddp"]


def test_checks_are_read_from_finished_files_of_a_folder(tmp_path):
    assert checks_in(tmp_path / "missing") == {}
    for name, error in (("toy-n2", 0.01), ("toy-n4", 0.02), ("toy-n8-unfinished", 0.9)):
        rows = [msgspec.to_builtins(measured(error=error)) | {"error": error, "newer": 1}]
        (tmp_path / f"{name}.json").write_text(json.dumps(rows))
    check = checks_in(tmp_path)["mine"]
    assert isinstance(check, Check)
    assert (check.measurements, check.largest) == (2, pytest.approx(0.02))
    (tmp_path / "toy-n8.json").write_text('[{"method": "mine"}]')
    with pytest.raises(UserError, match=r"toy-n8\.json.*delete it, or run"):
        checks_in(tmp_path)


SOUND = [msgspec.to_builtins(measured(bandwidth="100mbit"))]


@quick(60)
@given(rows=damaged(SOUND))
def test_whatever_a_file_holds_is_measurements_or_refused_in_a_line(tmp_path_factory, rows):
    path = tmp_path_factory.getbasetemp() / "measured.json"
    path.write_text(as_json(rows), errors="surrogatepass")
    refused = None
    try:
        checks_of(read_measurements(path))
    except UserError as error:
        refused = one_line(error)
    assert refused is None or str(path) in refused
