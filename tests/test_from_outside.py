"""A method, an optimizer and a collective of another package: every command takes them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ENTRIES = """
[istbench.methods]
central = outside_method:Central
[istbench.optimizers]
sign = outside_parts:SIGN
[istbench.collectives]
reduce = outside_parts:REDUCE
[istbench.size_plans]
central = outside_sizes:CENTRAL
"""

SIZES = """
from istbench.methods.planned_node import PlannedRounds
from istbench.methods.size_plan import SizePlan


def of_sizes(sizes, options):
    def rounds(node):
        while True:
            node.steps(1)
            for values in sizes.values:
                for kind in ("reduce", "broadcast"):
                    node.wait([node.post(kind, values * sizes.itemsize, [0])])
            yield

    return PlannedRounds(rounds=rounds)


CENTRAL = SizePlan(name="central", rounds=of_sizes)
"""

PARTS = """
import torch

from istbench.cluster.collective import Collective, CollectiveMessage
from istbench.methods.update_rule import UpdateRule


class Sign(torch.optim.Optimizer):
    def __init__(self, groups, lr):
        super().__init__(groups, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for own in group["params"]:
                own.sub_(own.grad.sign(), alpha=group["lr"])


def to_root(nodes):
    return [[], *([CollectiveMessage(to=nodes - place, after=0)] for place in range(1, nodes))]


SIGN = UpdateRule(name="sign", build=lambda groups, options: Sign(groups, options.lr), made_by=Sign)
REDUCE = Collective(name="reduce", code=8, chakra=1, schedule=to_root, rooted=True)
"""

METHOD = """
from dataclasses import dataclass

import torch.distributed as dist

from istbench.methods.base import Method, materialise
from istbench.methods.footprint import trained, whole_model
from istbench.methods.optimizer import OptimizerOptions, load_optimizer_state, optimizer_state
from istbench.methods.size_plan import Sizes
from outside_sizes import CENTRAL


class Central(Method):
    '''The mean gradient on one node, which sends the weights back.'''

    name, scheduled, own_updates = "central", True, ""

    @dataclass(frozen=True, kw_only=True)
    class Options(OptimizerOptions):
        pass

    def setup(self, model, workload, fabric):
        self._workload, self._fabric = workload, fabric
        self._model = materialise(model, workload, self.seed, fabric.device)
        self._optimizer = self.build_optimizer(self._model, workload)

    def step(self, batch):
        self._optimizer.zero_grad()
        loss = self._workload.loss(self._model, batch)
        loss.backward()
        for own in self._model.parameters():
            own.grad.div_(self._fabric.world_size)
            reduce = lambda own=own: dist.reduce(own.grad, 0, async_op=True)
            self._fabric.collective_async("reduce", own.nbytes, reduce, "reducing", 0).wait()
        self.set_rates(self._optimizer)
        self._optimizer.step()
        for own in self._model.parameters():
            self._fabric.broadcast_async(own.data, 0, "weights").wait()
        self._fabric.recorder.mark("round")
        return loss.detach()

    def assemble(self):
        return self._model if self._fabric.rank == 0 else None

    def state_dict(self):
        return {"model": self._model.state_dict(), "optimizer": optimizer_state(self._optimizer)}

    def load_state_dict(self, state):
        self._model.load_state_dict(state["model"])
        load_optimizer_state(self._optimizer, state["optimizer"])

    def footprint(self, model, workload, world_size, batch_size):
        own = trained(model)
        values, itemsize = [one.numel() for one in own], own[0].element_size()
        sizes = Sizes(values=values, itemsize=itemsize, nodes=world_size, most=10**6)
        return whole_model(model, self.options, CENTRAL.rounds(sizes, {}).rounds, batch_size)
"""

# All commands in one process, as its nodes share the imports. A word with * is the first such path.
WALK = """
import contextlib, io, json, sys
from pathlib import Path
from istbench.cli import main
from istbench.launch.processes import local

if __name__ == "__main__":
    local.PRELOADED += ["quick_measurements"]
    said = []
    for words in json.load(sys.stdin):
        out, err = io.StringIO(), io.StringIO()
        words = [next(map(str, Path().glob(word)), word) if "*" in word else word for word in words]
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                main(words)
        except SystemExit as ended:
            said.append([ended.code or 0, out.getvalue(), err.getvalue()])
    json.dump(said, sys.stdout)
"""

METHODS = "central,ddp,local_sgd"
TOY = ["--workload", "toy", "--nodes", "2"]
OWN = ["--set", "optimizer=sign", "--set", "lr=0.01"]
BRIEF = ["--minutes", "0.4", "--seeds", "1", "--target", "0.5"]
SHORT = ["--steps", "12"]


def walk(folder, commands):
    """The status, output and errors of each of `commands`, with the package in `folder` installed."""
    (folder / "walk.py").write_text(WALK)
    done = subprocess.run(
        [sys.executable, folder / "walk.py"],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parent)])},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def outside(tmp_path):
    """The folder of an installed package."""
    info = tmp_path / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    (tmp_path / "outside_parts.py").write_text(PARTS)
    (tmp_path / "outside_method.py").write_text(METHOD)
    (tmp_path / "outside_sizes.py").write_text(SIZES)
    return tmp_path


def test_every_command_takes_them(outside):
    commands = {
        "list": ["list", "methods", "--options"],
        "run": ["run", "--method", "central", *TOY, *OWN, *SHORT],
        "another": ["run", "--method", "ddp", *TOY, *OWN, *SHORT],
        "retrace": ["retrace", "--all"],
        "check": ["check", "central", "--set", "optimizer=sign"],
        "compare": ["compare", "--methods", METHODS, *TOY, *OWN, *SHORT, "--seeds", "1", "--controls"],
        "plan": ["plan", "--method", "central", *TOY, *OWN],
        "estimate": ["estimate", "--parameters", "1M", "--step", "0.1", *TOY[2:], "--bandwidth", "1gbit"],
        "timeline": ["timeline", "results/runs/*central*"],
        "report": ["report", "--no-pictures"],
        "replay": ["replay", "--no-pictures", "--bandwidth", "100mbit"],
        "map": ["map", "--bandwidth", "10mbit,1gbit"],
        "export": ["export", "results", "--format", "chakra", "--out", "chakra"],
        "advise": ["advise", "toy", *TOY[2:], "--bandwidth", "1gbit", "--methods", "central", *BRIEF],
        "tune": ["tune", "--methods", "central", *TOY, *SHORT, "--trials", "2", "--set", "optimizer=sign"],
    }
    said = dict(zip(commands, walk(outside, list(commands.values())), strict=True))
    failed = {name: (status, out[-500:], err[-1500:]) for name, (status, out, err) in said.items() if status}
    assert not failed, failed
    assert "central" in said["list"][1]
    assert "central" in said["report"][1]
    assert "central" in said["replay"][1]
    assert "unknown" not in said["plan"][1]
    assert "\ncentral " in said["estimate"][1]
