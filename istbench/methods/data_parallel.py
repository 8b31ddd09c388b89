"""All-reduce data parallel: torch's DistributedDataParallel, as users run it.

torch averages gradients in buckets while the backward pass still runs (Li et al., VLDB 2020). A communication hook
passes each bucket to the fabric, which counts it. With `accumulate`, the gradients of the first minibatches of a
round stay in their buckets (torch's `no_sync`), and those of the last one leave with the sum.

BatchNorm: every node normalises by its own minibatch, and the assembled model has the running statistics of rank 0.
DistributedDataParallel's broadcast of buffers gives the same model; istbench leaves it out. Every evaluation
estimates the statistics again (istbench/node/evaluate.py).
"""

import contextlib
import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from istbench.base.errors import UserError
from istbench.fabric import Fabric
from istbench.methods.base import Method, all_gradients, counted, is_parameter, materialise
from istbench.methods.buckets import Averages, BucketOptions, compression_buffers, planned_averages
from istbench.methods.flat import average
from istbench.methods.footprint import Footprint, trained, whole_model
from istbench.methods.model_state import load_model_state, model_state
from istbench.methods.optimizer import load_optimizer_state, optimizer_state
from istbench.methods.planned_node import BUCKET_MB, averaged_rounds
from istbench.methods.resharding import mean_tensors
from istbench.workloads.base import Batch, Workload
from istbench.workloads.module_state import modules_kept
from istbench.workloads.task_batches import RandomNumbers


class DataParallel(Method):
    """One optimizer step on the mean gradient of the minibatches of all nodes in a round."""

    name = "ddp"
    usual_place = 0
    Options = BucketOptions
    narrow_control = True
    joint_rounds = True
    round_option = "accumulate"
    message_options = ("compress", "rank", "start_compress", "least_compression")
    unequal = "gradients"
    scheduled = True
    own_updates = ""

    def setup(self, model: nn.Module, workload: Workload, fabric: Fabric) -> None:
        self._workload = workload
        self._fabric = fabric
        self._model = materialise(model, workload, self.seed, fabric.device)
        self._optimizer: Any = self.build_optimizer(self._model, workload)
        self._averages = Averages(fabric, self.options, self.seed)
        self._minibatches = 0  # of the current round
        # Parameters in the last backward pass, and whether they have a gradient.
        self._reached: dict[Tensor, bool] = {}
        for parameter in trained(self._model):
            parameter.register_post_accumulate_grad_hook(self._reach)
        # Every node makes the same initial weights from the seed, so there is nothing to synchronise.
        self._replica = Replica(
            self._model,
            # torch makes its first bucket small only without a given size.
            bucket_cap_mb=None if self.options.bucket_mb == BUCKET_MB else self.options.bucket_mb,
            broadcast_buffers=False,
            init_sync=False,
            gradient_as_bucket_view=True,  # an averaged bucket is not copied back into gradients
        )
        self._replica.register_comm_hook(self._averages, Averages.start)
        self._settle_buckets()
        if self.options.start_compress:
            fabric.recorder.steady = False
            fabric.recorder.unlike_steps = self.options.start_compress

    @property
    def round_steps(self) -> int:
        return self.options.accumulate

    def compresses(self) -> bool:
        return bool(self.options.compress != "none")

    def step(self, batch: Batch) -> Tensor:
        if not self._minibatches:
            self._clear_gradients()
        self._minibatches += 1
        ends = self._minibatches == self.round_steps
        self._averages.compressing = self.local_step >= self.options.start_compress
        with contextlib.nullcontext() if ends else self._replica.no_sync():
            loss = self._workload.loss(self._replica, batch)
            self._backward(loss if self.round_steps == 1 else loss / self.round_steps, ends)
        if ends:
            self._fabric.recorder.wait_all()  # the replica's backward pass ends when every bucket is averaged
            self._update()
            self._end_round()
        return loss.detach()

    def _backward(self, loss: Tensor, ends: bool) -> None:
        """Compute the gradients of `loss`. Where they leave (`ends`), a parameter without one sends zeros.

        A minibatch may use a part of the model, and another one on every node. torch's own answer,
        `find_unused_parameters`, walks through the graph of every step and sends one more message.
        """
        self._reached.clear()
        loss.backward()
        idle = [own for own in trained(self._model) if own not in self._reached]
        if ends and idle:
            # This calls the hooks of the replica, which send the buckets that are now complete.
            (torch.cat([own.reshape(-1)[:1] for own in idle]).sum() * 0).backward()
        if ends:
            self._averages.finish()
        if self._fabric.world_size == 1 and self.round_steps == 1:
            for own in [*idle, *(own for own, has_gradient in self._reached.items() if not has_gradient)]:
                own.grad = None  # a plain loop leaves them as they are

    def _reach(self, parameter: Tensor) -> None:
        if parameter in self._reached and self._fabric.world_size > 1:
            name = next(name for name, own in self._model.named_parameters() if own is parameter)
            raise UserError(
                f"{name} gets its gradient in two parts, and nodes average only the first; with "
                "torch.utils.checkpoint, write use_reentrant=False, or use local_sgd"
            )
        # A function of the user may return no gradient for it.
        self._reached[parameter] = parameter.grad is not None

    def close_round(self) -> None:
        self._average_open_round()
        self._end_round()

    def _update(self) -> None:
        self.options.clip_gradients(self._model.parameters())
        self.set_rates(self._optimizer)
        self._optimizer.step()
        self._minibatches = 0

    def _end_round(self) -> None:
        self._fabric.recorder.steady = self.local_step + self.round_steps >= self.options.start_compress
        self._fabric.recorder.mark("round")

    def _average_open_round(self) -> None:
        """Step on the mean gradient of fewer minibatches than a round has, without compression."""
        gradients = all_gradients(trained(self._model))
        for gradient in gradients:
            gradient.mul_(self.round_steps / self._minibatches)
        average(self._fabric, gradients, "averaging gradients")
        self._update()

    def _clear_gradients(self) -> None:
        # Later minibatches of a round add to the buckets; without gradients, they would add to other memory.
        self._optimizer.zero_grad(set_to_none=self.round_steps == 1)

    def assemble(self) -> nn.Module | None:
        if not self._minibatches:
            return self._model if self._fabric.rank == 0 else None
        # Inside a round the assembled model is the one that closing the round gives.
        before = copy.deepcopy(self.state_dict())
        self._average_open_round()
        assembled = copy.deepcopy(self._model)
        self.load_state_dict(before)
        return assembled if self._fabric.rank == 0 else None

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "model": model_state(self._model),
            "optimizer": optimizer_state(self._own_optimizer),
        }
        if (powersgd := self._averages.powersgd) is not None:
            state["powersgd"] = powersgd.state_dict()
        if self.round_steps > 1:
            state["minibatches"] = self._minibatches
            state["gradients"] = {
                name: own.grad
                for name, own in self._model.named_parameters()
                if self._minibatches and own.grad is not None
            }
        return state

    def is_shared(self, keys: tuple[str, ...]) -> bool:
        # Each node has its own buffers: its BatchNorm sees only its own minibatches.
        return keys[0] == "optimizer" or (keys[0] == "model" and is_parameter(self._model, keys[1]))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_model_state(self._model, state["model"])
        load_optimizer_state(self._own_optimizer, state["optimizer"])
        if (powersgd := self._averages.powersgd) is not None:
            powersgd.load_state_dict(state["powersgd"])
        if self.round_steps > 1:
            self._minibatches = counted(state, "minibatches", below=self.round_steps)
            parameters = dict(self._model.named_parameters())
            for name, gradient in state["gradients"].items():
                own = parameters[name].grad
                assert own is not None
                own.copy_(gradient)

    def resharded(self, states: Sequence[dict[str, Any]], rank: int) -> dict[str, Any]:
        # The buffers of rank 0 are those of the assembled model.
        state = dict(states[0])
        if self.options.compress == "powersgd":
            errors = mean_tensors([own["powersgd"]["errors"] for own in states])
            state["powersgd"] = {**state["powersgd"], "errors": errors}
        if state.get("minibatches"):
            state["gradients"] = mean_tensors([own["gradients"] for own in states])
        return state

    @property
    def _own_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer whose state this node keeps."""
        own: torch.optim.Optimizer = self._optimizer
        return own

    def _settle_buckets(self) -> None:
        """Make the replica order its buckets now. torch does this once, after the first backward pass.

        The place of a gradient in its bucket decides the order in which torch adds the values of the nodes. A
        resumed run needs the same order, so it must be final before the first step.
        """
        devices = [self._fabric.device] if self._fabric.device.type == "cuda" else []
        with (
            self._fabric.accounting("control"),
            self._workload.state_kept(),
            modules_kept(self._model),
            torch.random.fork_rng(devices=devices),
            RandomNumbers(self.seed).drawn(),
        ):
            self._backward(self._workload.loss(self._replica, self._settling_batch()), ends=True)
        self._clear_gradients()

    def _settling_batch(self) -> Batch:
        """Two samples, or a whole minibatch for a loss that relies on its size.

        A compiled loss is not tried: torch would compile it once more.
        """
        if not self._workload.compiles:
            try:
                with torch.no_grad():
                    self._workload.loss(self._model, self._first_samples(2))
            except Exception:  # a user's code; the first step reports other errors
                return self._first_samples(self._workload.batch_size)
        return self._first_samples(2)

    def _first_samples(self, count: int) -> Batch:
        places = torch.arange(min(count, self._workload.train_size))
        # A copy, as a loss may change its batch.
        inputs, targets = copy.deepcopy(self._workload.train_batch(places, torch.Generator()))
        return inputs.to(self._fabric.device), targets.to(self._fabric.device)

    def footprint(self, model: nn.Module, workload: Workload, world_size: int, batch_size: int) -> Footprint:
        """The whole model. Gradients are copied or added into buckets; each bucket is averaged in place."""
        rounds = averaged_rounds(planned_averages(trained(model), self.options))
        whole = whole_model(model, self.options, rounds, batch_size, gradients_copied=True, own=workload.optimizer)
        notes = list(whole.notes)
        if self.options.compress != "none":
            notes.append("compression takes no time in the plan")
        if unlike := self.options.start_compress:
            notes.append(
                f"the first {unlike} local steps send gradients without compression; a later round is planned"
            )
        return replace(
            whole,
            buffers=compression_buffers(self.options, trained(model)),
            unlike_steps=self.options.start_compress,
            notes=tuple(notes),
        )


class Replica(DistributedDataParallel):
    """torch's replica, with the way out for code that reads a part of the model inside it."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            inside = self._modules.get("module")
            if inside is None or not hasattr(inside, name):
                raise
            raise AttributeError(
                f"no {name} in DistributedDataParallel, in which ddp and zero pass the model; call model(...) "
                f"alone, or read model.module.{name}"
            ) from None
