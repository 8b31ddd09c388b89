"""The settings that p3 tries before training. Functions named `node_*` run on every node."""

import pytest

from istbench.base.options.run import RunRequest
from istbench.launch.cells.resolve import prepare_cell
from istbench.launch.processes.on_nodes import on_nodes
from istbench.methods.p3 import P3, Setting
from istbench.node.registry import build_method
from istbench.node.setup import set_up, warm_up
from istbench.studies.conformance.training import open_workload

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(("given", "sizes"), [(50_000, 4), (777, 5)])
def test_the_given_slice_size_is_tried_too_and_once(given, sizes, monkeypatch):
    tried = []

    def seconds(method, setting):
        tried.append(setting)
        return abs(setting.slice_params - given) + setting.window

    monkeypatch.setattr(P3, "_seconds", seconds)
    method = build_method("p3", {"autotune": True, "slice_params": given, "window": 3})
    assert method._fastest() == Setting(slice_params=given, window=1)
    assert len({setting.slice_params for setting in tried}) == sizes
    assert len(tried) == len(set(tried)) == sizes + 2


def node_warmed(fabric):
    """How often p3 has tried settings after the warm-up, and after the set-up of the run."""
    request = RunRequest(workload="toy", method="p3", steps=4, method_options={"autotune": True}, threads=1)
    config = prepare_cell(request, lambda *_: None).config
    workload, calls, counts = open_workload("toy", {}), [], []

    def fastest(method):
        calls.append(method)
        return Setting(slice_params=777, window=1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(P3, "_fastest", fastest)
        warm_up(config, workload, fabric)
        counts.append(len(calls))
        set_up(config, workload, fabric)
        counts.append(len(calls))
    return counts


def test_the_warm_up_tries_none():
    assert on_nodes(node_warmed, 1) == [[0, 1]]
