"""How often a run saves by itself (`--checkpoint-every auto`)."""

import math

import pytest

from istbench.base.errors import UserError
from istbench.base.options.run import RUN_OPTIONS, RunRequest
from istbench.node.training_state import checkpoint_interval

DAY_S = 86_400.0


def lost_share(interval_s, cost_s, between_s):
    """The share of time that checkpoints and faults cost, if a fault loses half an interval."""
    return cost_s / interval_s + interval_s / (2 * between_s)


@pytest.mark.parametrize("cost_s", [0.02, 0.5, 10.0])
@pytest.mark.parametrize(("wall_s", "losses"), [(0.0, 0), (3600.0, 3)])
def test_no_other_interval_loses_less(cost_s, wall_s, losses):
    between_s = (wall_s + DAY_S) / (1 + losses)
    chosen = checkpoint_interval(cost_s, wall_s, losses)
    assert chosen == pytest.approx(math.sqrt(2 * cost_s * between_s))
    assert lost_share(chosen, cost_s, between_s) <= min(
        lost_share(factor * chosen, cost_s, between_s) for factor in (0.5, 0.9, 1.1, 2.0)
    )


def test_it_has_bounds_and_begins_with_a_minute():
    assert checkpoint_interval(None, 0.0, 0) == 60.0
    assert checkpoint_interval(0.0, 0.0, 0) == 5.0
    assert checkpoint_interval(1e6, 0.0, 0) == 3600.0


def test_the_option_takes_seconds_or_auto():
    (option,) = [option for option in RUN_OPTIONS if option.name == "checkpoint_every_s"]
    assert option.decode("auto", option.flag, text=True) == "auto"
    assert option.decode("2.5", option.flag, text=True) == 2.5
    for text in ("-1", "often", "nan"):
        with pytest.raises(UserError, match="--checkpoint-every"):
            option.decode(text, option.flag, text=True)
    request = RunRequest(workload="toy", method="ddp", checkpoint_every_s="auto")
    assert "--checkpoint-every=auto" in request.arguments()
