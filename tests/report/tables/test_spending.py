"""Where the time goes on a cluster."""

import dataclasses

import pytest
from fake_clusters import BARE, write_pair
from read_tables import column, footer

from istbench.cluster.profile import Rack, SharedHost
from istbench.report.report import build_report_on_clusters


def test_replayed_tables_say_whose_clock_it_is_and_what_it_costs(results):
    write_pair(results)
    table, spent = build_report_on_clusters(results, {"bare": [dataclasses.replace(BARE, name="bare")]}).tables
    # At accuracy 0.8 of a ramp to 0.9, 100 steps: 8/9 of 100 x (0.01 + 1) s.
    cell = column(table, "cluster_s_to_0.8")["ddp", 2]
    assert cell.value["median"] == pytest.approx(101 * 8 / 9)
    assert cell.value["dollars"] == pytest.approx(101 * 8 / 9 * 2 * 0.384 / 3600)
    assert table.context["clock"] == "cluster_s"
    assert table.context["host"] == "bare"
    assert "replayed seconds to accuracy on bare" in table.title
    for expected in ("recorded on cpu, replayed on bare", "100 GFLOP/s", "8 Mbit/s out and in"):
        assert expected in footer(table)
    assert column(table, "speed_up")["local_sgd", 2].value["ratio"] == pytest.approx(101 / 13)
    figures = {key: column(spent, key)["local_sgd", 2].value for key in (c.key for c in spent.columns)}
    # 100 steps of 2 x 256 / 2 samples in 3 s of computing and 10 s of averaging.
    assert figures["samples_per_s"] == pytest.approx(100 * 256 / 13)
    assert figures["compute_percent"] == pytest.approx(100 * 3 / 13)
    assert figures["communication_percent"] == pytest.approx(100 * 10 / 13)
    assert figures["idle_percent"] == pytest.approx(0)
    assert figures["link_use_percent"] == pytest.approx(100 * 10 / 13)
    assert 0 < figures["carrying_percent"] < 0.1
    assert figures["dollars_per_hour"] == pytest.approx(0.768)
    assert figures["cluster_s"] == pytest.approx(13)
    assert figures["dollars"] == pytest.approx(0.768 * 13 / 3600)


def test_a_run_on_processors_replayed_on_a_gpu_is_a_lower_bound(results):
    write_pair(results)

    def said(gflops):
        profile = dataclasses.replace(BARE, name="bare", gflops=gflops)
        report = build_report_on_clusters(results, {"bare": [profile]})
        return footer(report.tables[0]), {plot.subtitle.partition("; ")[0] for plot in report.plots}

    below, captions = said(2000.0)
    assert "lower bound" not in below
    assert not any("at best" in caption for caption in captions)
    below, captions = said(9000.0)
    assert "bare computes as fast as GPUs do" in below
    assert all(caption.endswith("on bare, seconds at best") for caption in captions)


def test_links_that_are_faster_while_credits_last_are_said_under_every_table_of_their_cluster(results):
    write_pair(results)
    line = (
        "Network: bare at its sustained 8 Mbit/s. While burst credits last, its links may carry 32 Mbit/s: "
        "messages of short runs are up to 4 times as fast. `--bandwidth 0.032gbit` beside the same --cluster "
        "shows such runs."
    )
    profile = dataclasses.replace(BARE, name="bare", burst_bandwidth=32e6)
    tables = build_report_on_clusters(results, {"bare": [profile]}).tables
    assert [line in table.footer for table in tables] == [True, True]
    at_once = build_report_on_clusters(results, {"bare": [profile.with_bandwidth(32e6)]}).tables
    assert not any("burst credits" in footer(table) for table in at_once)


def test_hosts_and_racks_are_said_and_a_host_has_the_price(results):
    write_pair(results)
    host, rack = SharedHost(nodes=2, bandwidth=1e9, latency_s=5e-6), Rack(hosts=8, uplink=1e6)
    profile = dataclasses.replace(BARE, name="bare", host=host, rack=rack, speeds=(1.0, 0.5))
    table, spent = build_report_on_clusters(results, {"bare": [profile]}).tables
    assert (
        "8 Mbit/s out and in, 0 µs to another host; 2 nodes share the link of a host; inside it each has 1 Gbit/s "
        "out and in, 5 µs to another; 8 hosts share an uplink of 1 Mbit/s up and down; computing speeds 1, 0.5, "
        "repeated."
    ) in footer(table)
    assert "A host of 2 nodes costs $0.384 per hour" in footer(spent)
    assert column(spent, "dollars_per_hour")["local_sgd", 2].value == pytest.approx(0.384)


def test_a_core_that_is_busy_carrying_is_warned_of(results):
    """A run that averages 1 MB ten times a second of 13: 2 x 10 MB sent and received."""
    write_pair(results)

    def spent(cpu_s_per_byte):
        profile = dataclasses.replace(BARE, name="bare", cores=1.0, cpu_s_per_byte=cpu_s_per_byte)
        return build_report_on_clusters(results, {"bare": [profile]}).tables[1]

    little, much = spent(1e-9), spent(1e-6)
    assert "sending and receiving take" not in footer(little)
    assert 0 < column(little, "carrying_percent")["ddp", 2].value < 1
    assert column(much, "carrying_percent")["ddp", 2].value > 50
    assert "sending and receiving take up to" in footer(much)
    titles = {column.key: column.title for column in much.columns}
    assert titles["carrying_percent"] == "cores busy with messages %"
    assert titles["link_use_percent"] == "busiest link in use %"
