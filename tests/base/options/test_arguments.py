"""The arguments of a request make the same request."""

from pathlib import Path

import pytest

from istbench.base.options.interval import Interval
from istbench.base.options.run import RunRequest
from istbench.cli.run_command import command
from istbench.launch.backends.choose import backend_options


@pytest.mark.parametrize(
    "request_",
    [
        RunRequest(workload="toy", method="ist"),
        RunRequest(
            workload="speech", method="p3", nodes=3, seed=2, workload_options={"hidden": "64"},
            method_options={"lr": "0.5", "priority": "False"}, epochs=1.5, eval_every=Interval(seconds=2.5),
            target=0.77, data=Path("/some where/data"), device="cpu", amp="bf16", channels_last=True, threads=2,
            timeout_s=20.0, checkpoint_every_s=0.0, anyway=True, plugins=("a.py", "b c.py"),
            sinks=("tensorboard", "mllog=some where"),
        ),
    ],
)  # fmt: skip
def test_arguments_make_the_same_request(request_):
    first, *words = request_.arguments()
    assert first == "run"
    with command.make_context("run", words) as context:
        given = dict(context.params)
    for of_this_host in (
        "out",
        "cluster",
        "explain",
        "again",
        "as_json",
        "restarts",
        *(option.name for option in backend_options()),
    ):
        del given[of_this_host]
    assert RunRequest(**given) == request_


def test_options_of_their_own_type_are_typed_as_texts():
    request = RunRequest(
        workload="toy", method="ist", method_options={"local_steps": 4, "streaming": True, "sizes": [1, 2]}
    )
    assert request.arguments()[3:] == ("--set=local_steps=4", "--set=streaming=True", "--set=sizes=1,2")
