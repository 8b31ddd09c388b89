"""The names that a report is asked for by."""

import pytest
from fake_runs import header, ramp, write_plausible, write_run

from istbench.cluster.profile import load_profile
from istbench.cluster.selection import select_clusters
from istbench.config.defaults import BASELINE
from istbench.errors import UserError
from istbench.report.on_clusters import build_report_on_clusters
from istbench.report.report import build_report


def test_a_workload_can_be_chosen_and_an_unknown_one_is_named(results):
    write_plausible(results, "ddp")
    write_plausible(results, "ddp", workload="toy")
    (table,) = build_report(results, workload="toy").tables
    assert table.context["workload"] == "toy"
    with pytest.raises(UserError, match=r"unknown workload .*'tyo'; did you mean 'toy'"):
        build_report(results, workload="tyo")


def test_an_unknown_baseline_is_named_with_the_methods_there_are(results):
    write_plausible(results, "local_sgd", options="local_steps=8", traced=True)
    write_run(results, header("ist", status="failed"), [])
    message = (
        r"unknown baseline in .*results 'local_sdg'; did you mean 'local_sgd'\? Known: ist, local_sgd, local_sgd"
    )
    with pytest.raises(UserError, match=message) as error:
        build_report(results, baseline="local_sdg")
    assert len(str(error.value).splitlines()) == 1
    with pytest.raises(UserError, match=message):
        build_report_on_clusters(results, select_clusters(["m5.2xlarge"]), baseline="local_sdg")


@pytest.mark.parametrize("baseline", ["local_sgd", "local_sgd local_steps=8", "ist", BASELINE])
def test_methods_labels_and_the_default_are_baselines(results, baseline):
    write_plausible(results, "local_sgd", options="local_steps=8")
    write_run(results, header("ist", status="failed"), [])
    assert build_report(results, baseline=baseline).tables[0].context["baseline"] == baseline


def test_a_label_that_only_rows_on_a_cluster_have_is_a_baseline(results):
    for seed, (name, threads) in enumerate([("laptop", 1), ("server", 8)]):
        head = header("ist", cell=f"cell-{seed}", host={"name": name, "cores": 8, "machine": "x86_64"})
        head["config"]["threads"] = threads
        write_run(results, head, ramp(9.0))
    cluster = load_profile("m5.2xlarge")
    assert build_report(results, baseline="ist threads=8", cluster=cluster).problems != ()
    with pytest.raises(UserError, match="unknown baseline .*'ist threads=8'"):
        build_report(results, baseline="ist threads=8")
    with pytest.raises(UserError, match="Known: ist, ist threads=1, ist threads=8"):
        build_report(results, baseline="ist threads=2", cluster=cluster)
