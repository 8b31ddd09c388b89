"""`istbench engine`: the file of a command, and mistakes in one line each."""

import pytest
from said import messages

WHEEL = "dist/istbench-0.1.0-py3-none-any.whl"
RUN = ["--", "run", "--method", "ist", "--workload", "toy"]


@pytest.mark.parametrize("engine", ["skypilot", "kubeflow", "slurm", "parallelcluster"])
def test_the_file_is_all_of_standard_output(istbench, engine):
    asked = ["--nodes", 8, "--machine", "m5.2xlarge", "--install", "git+https://example.com/i"]
    status, out, said = istbench("engine", engine, *asked, *RUN)
    assert (status, said) == (0, "")
    assert " install --quiet git+https://example.com/i\n" in out
    assert "-m istbench run --method ist --workload toy --out " in out
    assert "# 8 x m5.2xlarge: $3.07 an hour" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["sky", "--nodes", 2, *RUN],
            "unknown engine 'sky'; did you mean 'skypilot'? Known: kubeflow, ",
        ),
        (
            ["slurm", "--nodes", 2, "--machine", "m5.big", *RUN],
            "unknown machine 'm5.big'; did you mean 'm5.2xlarge'?",
        ),
        (["slurm", "--nodes", 2, "--machine", "office-1gbit", *RUN], "unknown machine 'office-1gbit'"),
        (
            ["slurm", "--nodes", 2, "--", "faults", "smoke"],
            "faults does not train under torchrun; give one of",
        ),
        (["slurm", "--nodes", 2, *RUN, "--elastic", "1:2"], "leave out --elastic: the machines of an engine run"),
        (["slurm", "--nodes", 2, *RUN, "--restarts", 2], "leave out --restarts: the machines of an engine run"),
        (["slurm", "--nodes", 0, *RUN], "--nodes must be a whole number of at least 1"),
        (["slurm", "--nodes", 20_000, *RUN], "--nodes must be a whole number of at most 16384"),
        (["slurm", "--nodes", 2, "--hours", "inf", *RUN], "--hours must be "),
        (["slurm", "--nodes", 2, "--name", "A b", *RUN], "--name 'A b' is not 1 to 30 lower-case letters"),
        (["slurm", "--nodes", 2], "give the command of istbench after --, such as: -- run --method ist"),
        (["slurm", "--nodes", 2, "--"], "give the command of istbench after --"),
        (["slurm", "--nodes", 2, "--", "rum"], "unknown command 'rum'; did you mean 'run'?"),
        (["slurm", "--nodes", 2, "--", "list", "methods"], "istbench list does not train under torchrun"),
        (["slurm", "--nodes", 2, *RUN, "--stepz", 5], "No such option '--stepz'"),
        (["slurm", "--nodes", 2, *RUN, "--out", "mine"], "leave out --out: --results, before --, names the place"),
        (["slurm", "--nodes", 2, *RUN, "--nodes", 3], "run has --nodes 3 on 2 machines; leave it out"),
        (["skypilot", "--nodes", 2, "--results", "here", "--install", "i", *RUN], "--results 'here' is no bucket"),
        (
            ["skypilot", "--nodes", 2, *RUN],
            f"--install '{WHEEL}' is no file; `pip wheel --no-deps --wheel-dir dist .`",
        ),
        (
            ["slurm", "--nodes", 2, "--image", "a:1", "--install", "b", *RUN],
            "--install is for machines without --image; leave it out",
        ),
        (["kubeflow", "--nodes", 2, *RUN], f"--install '{WHEEL}' is a local file, which pods cannot read"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_printed(istbench, words, message):
    status, out, said = istbench("engine", *words)
    assert (status, out) == (2, "")
    (line,) = messages(said)
    assert message in line
