"""What outputs are tested on."""

import pytest
from fake_runs import write_plausible

from istbench.report.report import build_report


@pytest.fixture
def report(results):
    for seed in range(2):
        write_plausible(results, "ddp", seed=seed)
        write_plausible(results, "ist", seed=seed, best=0.75)
    return build_report(results)
