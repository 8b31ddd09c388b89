"""`istbench.load`: recorded runs as frames, their answer, replays and maps."""

import math

import pytest
from fake_runs import header, ramp, write_plausible, write_run

import istbench
from istbench.base.errors import UserError
from istbench.report.report import build_report
from istbench.results.stats import median


@pytest.fixture
def recorded(results):
    for method in ("ddp", "local_sgd"):
        for seed in range(3):
            write_plausible(results, method, seed=seed, traced=True)
    return istbench.load(results)


def test_runs_have_a_row_each_with_their_last_evaluation(recorded):
    frame = recorded.runs
    assert sorted(zip(frame.method, frame.seed, strict=True)) == [
        (method, seed) for method in ("ddp", "local_sgd") for seed in range(3)
    ]
    last = recorded.curves.groupby("cell").last()
    assert (frame.set_index("cell").train_s == last.train_s).all()
    assert (frame.final <= frame.best).all()


def test_seconds_to_a_target_are_those_of_the_report(recorded, results):
    frame = recorded.time_to(0.75)
    (group,) = build_report(results, levels=(0.75,)).groups
    found = {row.name: row.time(0.75) for row in group.contenders}
    megabytes = {row.name: row.megabytes(0.75).values() for row in group.contenders}
    assert list(frame.seconds) == sorted(one.median for one in found.values())
    for row in frame.itertuples():
        assert (row.seconds, row.low_s, row.high_s) == (
            found[row.method].median, found[row.method].low, found[row.method].high
        )  # fmt: skip
        assert row.sent_to_target_mb == median(megabytes[row.method])
        assert (row.reached, row.seeds, row.clock, row.target) == (3, 3, "train_s", 0.75)
        assert math.isnan(row.dollars)


def test_a_notebook_says_of_an_empty_table_that_no_run_has_finished(results):
    write_run(results, header(status="running"), ramp(9.0))
    assert "<td>No finished runs.</td>" in istbench.load(results)._repr_html_()


def test_a_target_that_nobody_reaches_takes_for_ever(recorded):
    frame = recorded.time_to(0.999)
    assert list(frame.seconds) == [math.inf, math.inf]
    assert list(frame.reached) == [0, 0]


def test_replayed_results_have_a_row_for_each_cluster_and_dollars(recorded):
    frame = recorded.replay("m5.2xlarge", bandwidth=["1gbit", 100e6]).time_to(0.75)
    assert sorted(frame.cluster.unique()) == ["m5.2xlarge at 1 Gbit/s", "m5.2xlarge at 100 Mbit/s"]
    assert (frame.clock == "cluster_s").all()
    assert (frame.dollars > 0).all()
    slow = frame[frame.cluster.str.contains("100 M")].set_index("method").seconds
    fast = frame[frame.cluster.str.contains("1 G")].set_index("method").seconds
    assert (slow >= fast).all()
    assert "cluster_s" in recorded.replay(latency=2).curves  # a number is in seconds, also above one


def test_a_map_has_a_row_for_each_bandwidth_and_number_of_nodes(recorded):
    frame = recorded.map(bandwidth=["10mbit", "10gbit"], target=0.75)
    assert list(frame.bandwidth) == [1e7, 1e10]
    assert set(frame.winner) <= {"ddp", "local_sgd"}


def test_a_map_by_latency_has_the_rows_of_the_command(recorded):
    rows = recorded.map(by="latency", bandwidth="1gbit")
    assert len(rows) == 4
    for given, said in (
        ({"latency": "1ms"}, "latency is for by latency"),
        ({"by": "latency", "nodes": [2, 4]}, "has one number of nodes"),
    ):
        with pytest.raises(UserError, match=said):
            recorded.map(**given)


def test_a_plug_in_may_be_given_as_one_text(recorded, monkeypatch):
    for call in (recorded.map, recorded.replay):
        with pytest.raises(UserError, match="has the code that"):
            call(plugins="my.py")

    def redealing(plugins):
        raise LookupError(*plugins)

    monkeypatch.setattr("istbench.api.results.redealing", redealing)
    with pytest.raises(LookupError, match=r"^my\.py$"):
        repr(recorded.replay(plugins="my.py", nodes=8))


def test_the_answer_and_what_a_notebook_shows_are_those_of_the_report(recorded, results):
    answers = build_report(results).answers
    assert recorded.answer() == "\n".join(answers)
    assert answers[0] in " ".join(repr(recorded).split())
    shown = recorded._repr_html_()
    assert shown.count("<table>") == 1
    assert "local_sgd" in shown


def test_names_are_escaped_in_a_notebook(results):
    write_plausible(results, "ddp", workload_label="<script>x</script>")
    shown = istbench.load(results)._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown


def test_an_unreadable_run_is_named(recorded, results):
    (results / "runs" / "broken").mkdir()
    (results / "runs" / "broken" / "run.json").write_text("{")
    found = istbench.load(results)
    for text in (repr(found), found._repr_html_()):
        assert "left out: " in text
        assert "broken" in text


def test_the_chosen_workload_and_metric_are_those_of_every_frame(recorded, results):
    write_plausible(results, "ddp", workload="toy", workload_label="toy")
    toy = istbench.load(results, workload="toy")
    assert (len(toy), set(toy.runs.workload_label), set(toy.curves.workload_label)) == (1, {"toy"}, {"toy"})
    with pytest.raises(UserError, match="unknown workload"):
        istbench.load(results, workload="typo")
    with pytest.raises(UserError, match="typo"):
        istbench.load(results, metric="typo")


def test_results_that_a_notebook_holds_show_new_runs_everywhere(recorded, results):
    assert len(recorded.time_to(0.75)) == 2
    write_plausible(results, "ist")
    assert len(recorded) == 7
    assert len(recorded.time_to(0.75)) == 3
    assert "ist" in repr(recorded)


def test_a_row_that_a_condition_cannot_compare_is_said(recorded, tmp_path):
    write_plausible(tmp_path / "before", "ddp")
    with pytest.warns(UserWarning, match="local_sgd on 2 nodes: the baseline has no such row"):
        assert recorded.fails("final < 0.5 * baseline", istbench.load(tmp_path / "before")) == []


def test_a_wrong_argument_of_results_is_refused(recorded):
    with pytest.raises(UserError, match="has a baseline: give its results"):
        recorded.fails("final > baseline")
    for call in (recorded.replay, recorded.map):
        with pytest.raises(UserError, match="nodes must be a whole number"):
            call("m5.2xlarge", nodes=0)
    with pytest.raises(UserError, match="no cluster"):
        recorded.replay([])


def test_a_page_is_written(recorded, tmp_path):
    file = recorded.page(tmp_path / "page.html")
    assert file.read_text().count("<html") == 1


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(UserError, match="no runs in"):
        istbench.load(tmp_path)


def test_an_unknown_option_or_number_is_refused():
    with pytest.raises(UserError, match=r"unknown option 'epoch' of a run.*epochs"):
        istbench.run("toy", "ddp", epoch=2)
    with pytest.raises(UserError, match="latency -1"):
        istbench.estimate("125M", 0.2, 2, bandwidth="1gbit", latency=-1)
    for given, said in (
        ({"backward": 67}, "backward"),
        ({"samples": -8}, "samples"),
        ({"gpus_per_host": 0}, "gpus_per"),
    ):
        with pytest.raises(UserError, match=said):
            istbench.estimate("125M", 0.2, 2, bandwidth="1gbit", **given)
    for given in ({"epochs": 2}, {"nodes": 4}, {"methods": ["ddp"]}):
        with pytest.raises(UserError, match="the suite names the cells"):
            istbench.compare("configs/quick.toml", **given)
    with pytest.raises(UserError, match="none-there"):
        istbench.compare("configs/quick.toml", data="none-there")


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda out: istbench.compare(methods=[], out=out), "no methods: name at least one"),
        (lambda out: istbench.compare(nodes=[], out=out), "no nodes: name at least one"),
        (lambda out: istbench.compare(seeds=0, out=out), "seeds must be a whole number of at least 1"),
        (lambda out: istbench.compare(seed=3, out=out), "unknown option 'seed' of a run"),
        (lambda out: istbench.compare(save="weights", out=out), "unknown option 'save' of a run"),
        (lambda out: istbench.compare(methods="dpp", out=out), "unknown method 'dpp'"),
        (
            lambda out: istbench.run("toy", "ddp", restarts=-1, out=out),
            "restarts must be a whole number of at least 0",
        ),
        (lambda out: istbench.run("toy", "ddp", plugins="none.py", out=out), "no file none.py"),
        (lambda out: istbench.run("toy", "ddp", nodes=4, elastic="2:4", out=out), "by restarts; give"),
        (
            lambda out: istbench.advise("toy", 2, bandwidth=1e9, minutes=-1, out=out),
            "minutes must be a number of at",
        ),
        (
            lambda out: istbench.advise("toy", 2, bandwidth=1e9, seeds=0, out=out),
            "seeds must be a whole number of at",
        ),
        (
            lambda out: istbench.advise("toy", 2, bandwidth=1e9, epochs=3, out=out),
            "unknown option 'epochs' of a run",
        ),
    ],
)
def test_nothing_trains_for_a_wrong_argument(call, why, tmp_path):
    with pytest.raises(UserError, match=why):
        call(tmp_path)
    assert not any(tmp_path.iterdir())


def test_an_estimate_takes_numbers_and_texts():
    by_text = istbench.estimate("125M", "220ms", 2, bandwidth="1gbit", methods="ddp")
    by_number = istbench.estimate(125e6, 0.22, 2, bandwidth=1e9, methods=["ddp"])
    assert by_text.as_json() == by_number.as_json()
    assert list(by_number.rows.method) == ["ddp"]
    assert by_number.answer() in " ".join(repr(by_number).split())


def test_the_package_names_what_it_offers():
    assert {"run", "compare", "load", "estimate", "advise", "record", "Task"} <= set(dir(istbench))
    for name in dir(istbench):
        assert getattr(istbench, name) is not None
    with pytest.raises(AttributeError):
        istbench.nothing  # noqa: B018
