"""`istbench plan` as a user has it."""

import json

import pytest

from istbench.base.options.run import RunRequest
from istbench.cluster.profile import load_profile
from istbench.plan.planner import make_plan

PLAN = ["plan", "--workload", "speech", "--method", "ddp", "--nodes", "8", "--cluster", "p3.2xlarge"]


def test_json_is_one_object_with_the_fields_that_programs_lean_on(istbench):
    status, out, _ = istbench(*PLAN, "--json")
    said = json.loads(out)
    assert status == 0
    assert said["fits"] is True
    memory = said["memory_bytes_per_node"]
    assert memory.pop("total") == sum(memory.values())
    assert {"parameters", "gradients", "optimizer_state", "activations", "exchange_buffers"} <= memory.keys()
    assert said["exchange_bytes_per_node_per_round"] == 2 * 4 * said["model_parameters"] * 7 // 8
    assert said["seconds_per_round"] > said["compute_seconds_per_round"] > 0
    assert said["largest_width"] > 4096
    assert said["fewest_nodes"] == 1


AMAZON = ["plan", "--workload", "amazon670k", "--cluster", "p3.2xlarge", "--nodes", "8", "--json"]


def test_amazon_670k_is_planned_at_its_own_sizes():
    """Published: on 16 GB GPUs, data parallel trains 512 hidden units and none of the larger ones; IST all."""
    cluster = load_profile("p3.2xlarge")
    for method, hidden, fits in (("ddp", 512, True), ("ddp", 1024, False), ("ist", 2560, True)):
        options = {"hidden": hidden}
        asked = RunRequest(workload="amazon670k", method=method, nodes=8, workload_options=options)
        plan = make_plan(asked, cluster, limits=False)
        assert plan.fits == fits
        assert plan.model_parameters == (135_909 + 670_091) * hidden + hidden + 670_091
        assert plan.seconds > plan.compute_seconds > 0


def test_a_plan_takes_the_sizes_of_data_that_is_named(istbench, tmp_path):
    (tmp_path / "things_data.txt").write_text("3 70 40\n1,2 0:1.5\n3 4:1\n 2:1\n")
    said = []
    for options in (["--data", str(tmp_path)], ["--workload-set", "labels=40"]):
        status, out, _ = istbench(*AMAZON, "--method", "ddp", "--workload-set", "hidden=8", *options)
        assert status == 0
        said.append(json.loads(out))
    parameters = [features * 8 + 8 + 8 * 40 + 40 for features in (70, 5_000)]
    assert [plan["model_parameters"] for plan in said] == parameters
    assert "70 features and 40 labels" in said[0]["assumed"][0]


def test_the_table_says_what_does_not_fit_and_what_would(istbench):
    status, out, _ = istbench(*PLAN, "--workload-set", "hidden=1000000")
    assert status == 0
    assert "GiB more than 14.9 GiB per node" in out
    assert "largest hidden that fits" in out
    assert "without data" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workload-set", "hiden=3"], "did you mean 'hidden'"),
        (["--cluster", "p3.2xlrge"], "p3.2xlarge"),
        (["--nodes", "0"], "--nodes"),
        (["--batch-size", "0"], "--batch-size"),
        (["--set", "lr"], "name=value"),
        (["--data", "."], "leave out --data"),
        (["--workload", "amazon670k", "--data", "nowhere"], "nowhere: no such directory"),
        (
            ["--method", "ist", "--nodes", "4096", "--workload-set", "hidden=4095"],
            "ist needs a hidden unit for each",
        ),
    ],
)
def test_wrong_use_is_one_line(istbench, arguments, said):
    status, out, err = istbench(*PLAN, *arguments)
    assert (status, out) == (2, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1
