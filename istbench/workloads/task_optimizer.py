"""A user's own optimizer, checked: istbench steps it, saves it, and sets its learning rates."""

from typing import Any

import torch
from torch import Tensor, nn

from istbench.workloads.task_batches import kind_of
from istbench.workloads.task_file import TaskFile

_PLAIN = (bool, int, float, str, type(None), Tensor)


def own_optimizer(file: TaskFile, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """What `optimizer(parameters)` of `file` returns.

    Raises:
        UserError: if it is no torch optimizer over these parameters, or other code changes its steps.
    """
    found: Any = file.call("optimizer", parameters)
    if not isinstance(found, torch.optim.Optimizer):
        what = kind_of(found)
        raise file.wrong(
            "optimizer",
            f"returns {what}; it should return a torch.optim.Optimizer alone; for a "
            "learning-rate schedule, use --set schedule=cosine",
        )
    if any("initial_lr" in group for group in found.param_groups):
        raise file.wrong(
            "optimizer",
            "has a learning-rate scheduler, which istbench cannot step as often as "
            "a method takes local steps; leave it out, and use --set schedule=cosine",
        )
    if "step" in vars(found) or found._optimizer_step_pre_hooks or found._optimizer_step_post_hooks:
        raise file.wrong("optimizer", "its step is wrapped by other code; return the torch optimizer as it is")
    if isinstance(found, torch.optim.LBFGS):
        raise file.wrong("optimizer", "LBFGS computes the loss several times in a step; use another optimizer")
    own = {id(own) for group in found.param_groups for own in group["params"]}
    trained = {id(parameter) for parameter in parameters if parameter.requires_grad}
    if not trained <= own <= {id(parameter) for parameter in parameters}:
        raise file.wrong(
            "optimizer",
            f"trains {len(own)} tensors, not the {len(trained)} parameters; it should train those that it is given",
        )
    _check_plain(
        file, {key: value for group in found.param_groups for key, value in group.items() if key != "params"}
    )
    return found


def check_state(file: TaskFile, optimizer: torch.optim.Optimizer) -> None:
    """Check, after a step, that a checkpoint can hold the state of `optimizer`.

    Raises:
        UserError: naming an entry that is no tensor, number or text.
    """
    for kept in optimizer.state_dict()["state"].values():
        _check_plain(file, kept)


def _check_plain(file: TaskFile, values: Any) -> None:
    for key, value in values.items():
        parts = value if isinstance(value, list | tuple) else [value]
        if not all(isinstance(part, _PLAIN) for part in parts):
            raise file.wrong(
                "optimizer",
                f"keeps {key!r} as a {type(value).__name__}, which a checkpoint cannot hold; "
                "use an optimizer that keeps tensors and numbers",
            )
