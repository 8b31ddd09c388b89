"""The checks of every method. Each runs on all nodes of a process group and returns its observation.

A failed check raises `DoesNotHold`.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from istbench.base.errors import UserError
from istbench.fabric import Fabric
from istbench.fabric.recorder import Recorder
from istbench.methods.base import AssembledInBlocks, Method
from istbench.node.digest import weights_sha256
from istbench.node.registry import build_method
from istbench.studies.conformance.training import (
    assembled,
    batches_of,
    largest_difference,
    open_workload,
    plain_training,
    set_up,
    through_disk,
    train,
)
from istbench.workloads.base import Workload
from istbench.workloads.contract import blank_model

_STEPS = 9  # not a multiple of the toy workload's local steps, so the last round stays open
_EXACT = 1e-6


@dataclass(frozen=True)
class CheckedMethod:
    """A method to check. options: as typed."""

    name: str
    plugins: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def workload(self, nodes: int) -> Workload:
        """The first small workload that it can train on `nodes`."""
        for tried, of_workload in _WORKLOADS:
            workload = open_workload(tried, of_workload)
            method = build_method(self.name, self.options, workload=workload, plugins=self.plugins)
            try:
                method.check(method.options, blank_model(workload), workload, nodes)
            except UserError as error:
                refused = error
            else:
                return workload
        raise DoesNotHold(f"it cannot train any of {', '.join(tried for tried, _ in _WORKLOADS)}: {refused}")

    def set_up(self, fabric: Fabric, workload: Workload) -> Method:
        """It on a node, ready to step."""
        return set_up(fabric, workload, self.name, self.options, plugins=self.plugins)


class CheckResult(NamedTuple):
    """Result of one check. detail: the observation, or the reason of a skip."""

    name: str
    outcome: Literal["holds", "failed", "skipped"]
    detail: str


class DoesNotHold(AssertionError):  # noqa: N818
    """A failed check, with the observation."""


def same_seed_same_curve(fabric: Fabric, checked: CheckedMethod) -> str:
    """Two trainings of one seed give the same losses and weights, bit for bit."""
    workload = checked.workload(fabric.world_size)
    curves, weights = [], []
    for _ in range(2):
        method = checked.set_up(fabric, workload)
        curves.append(train(fabric, workload, method, 0, _STEPS))
        weights.append(_weights(fabric, method))
    if curves[0] != curves[1] or weights[0] != weights[1]:
        raise DoesNotHold(f"two trainings of one seed differ: losses {curves[0]} and {curves[1]}")
    return f"losses and weights equal over {_STEPS} steps, bit for bit"


def resumed_run_is_the_run(fabric: Fabric, checked: CheckedMethod) -> str:
    """A run that resumes from a checkpoint at any step equals the run without a stop, bit for bit."""
    workload = checked.workload(fabric.world_size)
    whole = checked.set_up(fabric, workload)
    train(fabric, workload, whole, 0, _STEPS)
    wanted = _weights(fabric, whole)
    stopped, states = checked.set_up(fabric, workload), []
    for step in range(_STEPS):
        states.append(through_disk(stopped.state_dict(), fabric.rank))
        train(fabric, workload, stopped, step, step + 1)
    for stop, state in enumerate(states):
        resumed = checked.set_up(fabric, workload)
        resumed.load_state_dict(state)
        train(fabric, workload, resumed, stop, _STEPS)
        if _weights(fabric, resumed) != wanted:
            raise DoesNotHold(f"a run resumed at step {stop} of {_STEPS} ends with other weights")
    return f"the same weights, resumed at each of {_STEPS} steps, bit for bit"


def assembling_changes_nothing(fabric: Fabric, checked: CheckedMethod) -> str:
    """The assembled model is finite after every step, and assembling does not change the training.

    Blocks, if the method reads its model in blocks, equal the assembled model bit for bit.
    """
    workload = checked.workload(fabric.world_size)
    weights, blocks = [], ""
    for looking in (False, True):
        method = checked.set_up(fabric, workload)
        # Only inside a round and at its end: one message a block after every step would take most of the time.
        in_blocks = {1, method.round_steps, _STEPS}
        for step in range(_STEPS):
            train(fabric, workload, method, step, step + 1)
            model = assembled(fabric, method) if looking else None
            if model is not None and not all(torch.isfinite(p).all() for p in model.parameters()):
                raise DoesNotHold(f"after step {step + 1} the assembled model has weights that are not finite")
            if looking and step + 1 in in_blocks and reads_in_blocks(fabric, method, workload, model):
                blocks = "; in blocks as well"
        weights.append(_weights(fabric, method))
    if weights[0] != weights[1]:
        raise DoesNotHold("a training with an assembly after every step ends with other weights")
    return f"assembled after each of {_STEPS} steps: finite, and the same training{blocks}"


def rounds_have_the_declared_length(fabric: Fabric, checked: CheckedMethod) -> str:
    """The method marks a round after `round_steps` local steps, also after a round that was closed early.

    Closing a round exchanges as its end does, and does not change the assembled model.
    """
    workload = checked.workload(fabric.world_size)
    recorder = fabric.recorder = _RoundCounter(fabric.device)
    method = checked.set_up(fabric, workload)
    length = method.round_steps
    if length < 1:
        raise DoesNotHold(f"a round cannot have {length} local steps")
    steps = length * -(-max(2 * length, _STEPS) // length)
    ends = _marked(fabric, workload, method, 0, steps)
    if ends and ends != list(range(length, steps + 1, length)):
        raise DoesNotHold(f"rounds should have {length} local steps, but their ends are marked after steps {ends}")
    declared = f"{length} local steps" + ("" if ends else ", never marked")
    if length == 1:
        return declared
    sent = _sent(fabric)
    train(fabric, workload, method, steps, steps + 1)
    before = copy.deepcopy(assembled(fabric, method))
    method.close_round()
    if sent and _sent(fabric) == sent:
        raise DoesNotHold("closing a round early sent no bytes, unlike the ends of rounds")
    if recorder.rounds != len(ends) + bool(ends):
        raise DoesNotHold("closing a round early did not mark its end")
    after = assembled(fabric, method)
    difference = 0.0 if before is None or after is None else largest_difference(before, after)
    if not difference <= _EXACT:
        raise DoesNotHold(f"closing a round early moves weights of the assembled model by {difference:.2g}")
    following = _marked(fabric, workload, method, steps + 1, steps + 1 + length)
    if ends and following != [steps + 1 + length]:
        raise DoesNotHold(f"the round after one that was closed early does not have {length} local steps")
    return f"{declared}; closed early, the model moves by {difference:.2g}"


def bytes_sent_are_bytes_received(fabric: Fabric, checked: CheckedMethod) -> str:
    """All nodes together send and receive equally many training bytes, and assembling counts apart."""
    workload = checked.workload(fabric.world_size)
    traffic = fabric.traffic["training"]
    before = (traffic.sent, traffic.received)
    method = checked.set_up(fabric, workload)
    train(fabric, workload, method, 0, batches_of(fabric, workload, method).steps_per_epoch)
    method.drain()
    trained = (traffic.sent, traffic.received)
    assembled(fabric, method)
    if trained != (traffic.sent, traffic.received):
        raise DoesNotHold("assembling was counted as training traffic")
    sent, received = fabric.total(trained[0] - before[0]), fabric.total(trained[1] - before[1])
    if sent != received:
        raise DoesNotHold(f"{sent:.0f} bytes sent over all nodes, but {received:.0f} received")
    return f"{sent:.0f} bytes over all nodes in an epoch"


CHECKS = (
    same_seed_same_curve,
    resumed_run_is_the_run,
    assembling_changes_nothing,
    bytes_sent_are_bytes_received,
    rounds_have_the_declared_length,  # the last check, because it leaves its recorder on the fabric
)


def every_check(fabric: Fabric, checked: CheckedMethod) -> list[str]:
    """The observation of each of `CHECKS`."""
    return [check(fabric, checked) for check in CHECKS]


def one_node_is_plain_training(fabric: Fabric, checked: CheckedMethod) -> str:
    """On one node the method trains exactly as a plain loop does."""
    workload = checked.workload(fabric.world_size)
    method = checked.set_up(fabric, workload)
    train(fabric, workload, method, 0, _STEPS)
    model = assembled(fabric, method)
    assert model is not None
    difference = largest_difference(model, plain_training(workload, method.options, _STEPS))
    if not difference <= _EXACT:
        raise DoesNotHold(f"weights differ from a plain loop's by {difference:.2g}")
    return f"weights within {difference:.2g} of a plain loop's"


class _RoundCounter(Recorder):
    """A recorder that counts the rounds marked."""

    rounds = 0

    def mark(self, what: str) -> None:
        self.rounds += what == "round"


def _marked(fabric: Fabric, workload: Workload, method: Method, first: int, last: int) -> list[int]:
    """The local steps from `first` to `last`, counted from 1, after which the training marked a round."""
    recorder, ends = fabric.recorder, []
    assert isinstance(recorder, _RoundCounter)
    for step in range(first, last):
        before = recorder.rounds
        train(fabric, workload, method, step, step + 1)
        ends += [step + 1] * (recorder.rounds - before)
    return ends


def reads_in_blocks(fabric: Fabric, method: Method, workload: Workload, model: nn.Module | None) -> bool:
    """Whether the method reads its full model in blocks.

    The halves of each tensor along each dimension must equal the assembled model.
    """
    tensors = blank_model(workload).state_dict()
    with fabric.accounting("assemble"):
        block = method.blocks() if isinstance(method, AssembledInBlocks) else None
        if block is None:
            return False
        for name, tensor in tensors.items():
            for dim, length in enumerate(tensor.shape or (1,)):
                for first, last in ((0, length // 2), (length // 2, length)):
                    values = block(name, dim, first, last) if first < last else None
                    whole = None if model is None or values is None else model.state_dict()[name]
                    if whole is None or values is None:
                        continue
                    if whole.dim():
                        whole = whole.narrow(dim, first, last - first)
                    if not torch.equal(values, whole):
                        raise DoesNotHold(
                            f"block {first} to {last} along dimension {dim} of {name} is not that of the model"
                        )
    return True


def _sent(fabric: Fabric) -> float:
    """Training bytes that all nodes have sent so far."""
    return fabric.total(fabric.traffic["training"].sent)


_WORKLOADS: tuple[tuple[str, dict[str, object]], ...] = (
    ("toy", {"batch_norm": True, "hidden": 13}),
    ("amazon670k", {"hidden": 13, "features": 50, "labels": 61, "points": 600}),
)


def _weights(fabric: Fabric, method: Method) -> str:
    model = assembled(fabric, method)
    return "" if model is None else weights_sha256(model)
