"""A run with shares belongs to its nodes."""

import pytest
from fake_runs import averaging_trace, header, ramp, write_run

from istbench.base.errors import UserError
from istbench.plan.redeal import redeal
from istbench.results.load import load_run


def test_a_run_with_shares_is_dealt_to_no_other_number_of_nodes(results):
    head = header("ddp")
    run = load_run(write_run(results, {**head, "config": {**head["config"], "shares": "1,0.5"}}, ramp(2.0)))
    with pytest.raises(UserError, match="its --shares are for 2 nodes; record it on equal ones, or on 4"):
        redeal(run, averaging_trace(2), 4)
