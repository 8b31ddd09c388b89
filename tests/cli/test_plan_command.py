"""`istbench plan` as a user has it."""

import json

import pytest

from istbench.cli import main

PLAN = ["plan", "--workload", "speech", "--method", "ddp", "--nodes", "8", "--cluster", "p3.2xlarge"]


def istbench(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


def test_json_is_one_object_with_the_fields_that_programs_lean_on(capsys):
    status, out, _ = istbench(capsys, *PLAN, "--json")
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


def test_the_table_says_what_does_not_fit_and_what_would(capsys):
    status, out, _ = istbench(capsys, *PLAN, "--workload-set", "hidden=1000000")
    assert status == 0
    assert "GiB beyond of 16 GiB a node" in out
    assert "largest hidden that fits" in out
    assert "no data looked at" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workload-set", "hiden=3"], "did you mean 'hidden'"),
        (["--cluster", "p3.2xlrge"], "p3.2xlarge"),
        (["--nodes", "0"], "--nodes"),
        (["--batch-size", "0"], "--batch-size"),
        (["--set", "lr"], "name=value"),
        (["--method", "ist", "--nodes", "4096", "--workload-set", "hidden=4095"], "ist needs a hidden unit a node"),
    ],
)
def test_wrong_use_is_one_line(capsys, arguments, said):
    status, out, err = istbench(capsys, *PLAN, *arguments)
    assert (status, out) == (2, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1
