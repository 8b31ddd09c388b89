"""Pages of fake runs."""

import pytest
from fake_runs import header, ramp, write_plausible, write_run

from istbench.cluster.profile import load_profile
from istbench.report.output.html.write import write_page
from istbench.report.page import build_page
from istbench.report.report import build_report


def page_of(results, advice=None):
    report = build_report(results, cluster=load_profile("m5.2xlarge"), bandwidths=(1e8, 1e9, 1e10))
    return build_page(report, results / "report" / "page.html", advice)


@pytest.fixture(scope="session")
def trial(tmp_path_factory):
    """A results directory that no test changes."""
    return tmp_path_factory.mktemp("page") / "results"


@pytest.fixture(scope="session")
def page(trial):
    """Two studies. The first has two methods, nodes and seeds, one method with options, and a run that failed."""
    for nodes in (2, 4):
        for seed in range(2):
            write_plausible(trial, "ddp", nodes=nodes, seed=seed, traced=True)
            write_plausible(trial, "ist", nodes=nodes, seed=seed, best=0.75, traced=True)
    write_plausible(trial, "ist", nodes=4, seed=2, best=0.5, traced=True)  # the only seed that misses 0.7
    write_plausible(trial, "local_sgd", nodes=2, options="local_steps=40", traced=True)
    write_run(trial, header("p3", status="failed", error="died of </script><b>"), [])
    write_run(trial, header("ddp", workload="toy", targets=[0.5]), ramp(9.0))
    write_run(trial, header("broken", cell="broken"), ramp(9.0)).run_json.write_text("{")
    return page_of(trial)


@pytest.fixture(scope="session")
def page_file(page, trial):
    path = trial / "report" / "page.html"
    write_page(page, path)
    return path
