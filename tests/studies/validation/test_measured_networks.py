"""The networks of a validation are made before the first of its runs."""

import pytest

from istbench.base.errors import UserError
from istbench.base.machine import cores
from istbench.base.options.run import RunRequest
from istbench.launch.backends.backend import Screen
from istbench.studies.validation.measure import Validation


class Silent(Screen):
    """A screen without lines."""


def validation(monkeypatch, nodes, **network):
    """A validation that may not train."""
    monkeypatch.setattr(Validation, "_rehearse", lambda *_: pytest.fail("it trains before it has all networks"))
    requests = [RunRequest(workload="toy", method="ddp", nodes=count) for count in nodes]
    return Validation(requests, ["1gbit"], repeats=1, seconds=1.0, latency_s=0.0, display=Silent(), **network)


@pytest.mark.parametrize(
    ("nodes", "network", "said"),
    [
        ((2, 4), {"racks": 2}, "racks and an uplink belong together"),
        ((4, 2), {"racks": 3, "uplink": 1e9}, "4 nodes leave one of 3 racks empty"),
    ],
)
def test_racks_are_refused_before_any_run(monkeypatch, nodes, network, said):
    with pytest.raises(UserError, match=said):
        validation(monkeypatch, nodes, **network).of_the_network()


def test_nodes_without_a_core_are_refused_before_any_run(monkeypatch):
    with pytest.raises(UserError, match=f"at most {cores()} nodes with --scaling"):
        validation(monkeypatch, (cores() + 2,)).of_scaling()
