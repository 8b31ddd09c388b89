"""The tables of P3, priority-based parameter propagation (Jayarajan et al., arXiv 1905.03960)."""

from collections.abc import Mapping
from typing import Any

from istbench.base.options.suite import Suite
from istbench.studies.reproduce.measured_gains import MeasuredGains
from istbench.studies.reproduce.paper import Cells, Difference, Paper, experiment
from istbench.studies.reproduce.replayed_gains import SLICE_PARAMS, SPLIT_PARAMS, ReplayedGains

SOURCE = "P3 (arXiv 1905.03960)"
_SECOND_HAND = "P3 on AWS, second-hand"  # eight machines; our table has it beside four, and says so
# The baseline splits tensors of over a million parameters over the servers, as MXNet's does. p3 without priority is
# slicing alone, and with slice_params = 0 priority alone.
_METHODS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("parameter_server", {"split_params": SPLIT_PARAMS}),
    ("p3", {"slice_params": SLICE_PARAMS, "priority": True}),
    ("p3", {"slice_params": SLICE_PARAMS, "priority": False}),
    ("p3", {"slice_params": 0, "priority": True, "split_params": SPLIT_PARAMS}),
    ("parameter_server", {"split_params": 0}),
)


def _traced(model: str, batch: int, hours: float) -> Cells:
    """Four steps of every method on four nodes: enough for a trace."""
    images = {"model": model, "samples": 32 if batch > 4 else 16}
    return Cells(
        suite=Suite(
            workload="translation" if model == "translation" else "imagenet",
            methods=_METHODS,
            nodes=(4,),
            seeds=(0,),
            workload_options={} if model == "translation" else images,
            run={"batch_size": batch, "steps": 4, "eval_every": 4},
        ),
        hours=hours,
    )


def _timed(model: str) -> Cells:
    """Forty steps of the paper's minibatch, 32 samples a node."""
    return Cells(
        suite=Suite(
            workload="translation" if model == "translation" else "imagenet",
            methods=_METHODS[:3],
            nodes=(4,),
            seeds=(0, 1, 2),
            workload_options={} if model == "translation" else {"model": model, "samples": 256},
            run={"batch_size": 32, "steps": 40, "eval_every": 40},
        )
    )


# VGG-19's minibatch is not the smallest: its large layers take memory traffic, not arithmetic, and would loom.
_LAPTOP = (
    _traced("vgg19", 6, 0.2),
    _traced("resnet50", 4, 0.06),
    _traced("translation", 8, 0.06),
    _traced("inception_v3", 2, 0.06),
)

_TIMED = [_timed(model) for model in ("resnet50", "vgg19", "translation")]
_NOISE = Difference(aspect="data", text="noise in place of images, and made-up sentences.", made_up=True)
_SERVER = "ours is this project's parameter server, theirs MXNet's"
_BASELINE = Difference(aspect="baseline", text=f"{_SERVER}.")
_BASELINE_REPLAYED = Difference(
    aspect="baseline",
    text=f"{_SERVER}, which also copies between GPU and host and sends a notification and a pull request for each "
    "key.",
)

PAPER = Paper(
    name="p3",
    title="Priority-based parameter propagation, arXiv 1905.03960",
    experiments=(
        experiment(
            "gains",
            "P3 and slicing alone over the parameter server: samples a second, four nodes",
            (_LAPTOP, ReplayedGains(source=SOURCE), (_NOISE, _BASELINE_REPLAYED)),
            (_TIMED, MeasuredGains(sources=(SOURCE, _SECOND_HAND)), (_NOISE, _BASELINE)),
        ),
    ),
)
