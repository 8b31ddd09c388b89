"""The figures of SLIDE (arXiv 1903.03129) and Distributed SLIDE (Yan et al., arXiv 2201.12667)."""

from collections.abc import Mapping
from typing import Any

from istbench.base.options.suite import Suite
from istbench.studies.reproduce.clocks import MeasuredClock, ReplayedClock
from istbench.studies.reproduce.finals import Finals
from istbench.studies.reproduce.paper import Cells, Difference, Paper, experiment
from istbench.studies.reproduce.speedups import SpeedUps

_FINALS = "Papers on SLIDE (arXiv 1903.03129 and after)"
_NAMES = {"dense network": "model_parallel", "SLIDE": "dslide"}


def _cells(methods: tuple[str, ...], nodes: int, run: Mapping[str, Any], hours: float | None = None) -> Cells:
    return Cells(
        suite=Suite(
            workload="amazon670k",
            methods=tuple((method, {"lr": 0.01}) for method in methods),
            nodes=(nodes,),
            seeds=(0, 1, 2),
            workload_options={"hidden": 128},
            run=run,
        ),
        hours=hours,
    )


# On one machine, as SLIDE; on four, as Distributed SLIDE.
_ALONE, _TOGETHER = ("model_parallel", "sampled_softmax", "dslide"), ("model_parallel", "dslide")
_SHORT = {"epochs": 3, "eval_every": 27}
_LAPTOP = _cells(_ALONE, 1, _SHORT, 0.05)
_LAPTOP_NODES = _cells(_TOGETHER, 4, _SHORT, 0.05)
_FULL = {"epochs": 3, "eval_every": 200}
_PAPER = _cells(_ALONE, 1, _FULL)
_PAPER_NODES = _cells(_TOGETHER, 4, _FULL)
_LABELS = Difference(
    aspect="data",
    text="without --data, 20,000 made-up points with 5,000 labels; theirs have 670,091. A wider output gains more. "
    "--data amazon670k=DIR takes any data set of the Extreme Classification Repository.",
    made_up=True,
)
_EPOCHS = Difference(aspect="budget", text="ours is three epochs; the papers train until the precision stays.")
_BASELINE = Difference(
    aspect="baseline",
    text="ours is model_parallel of this project, theirs a dense softmax of TensorFlow or Horovod.",
)

_PRECISIONS = Finals(sources=(_FINALS,), names=_NAMES)
_ON_ONE = SpeedUps(source="SLIDE (arXiv 1903.03129)", clock=MeasuredClock())
_DISTRIBUTED = "Distributed SLIDE (arXiv 2201.12667)"
_REPLAYED = ReplayedClock(cluster="m5.2xlarge", bandwidth=100e6)

PAPER = Paper(
    name="dslide",
    title="SLIDE and Distributed SLIDE, arXiv 1903.03129 and 2201.12667",
    experiments=(
        experiment(
            "precision",
            "Amazon-670K with 128 hidden units: final precision@1",
            ([_LAPTOP], _PRECISIONS, (_LABELS, _EPOCHS)),
            ([_PAPER], _PRECISIONS, (_EPOCHS,)),
            needs_data=(False, True),
        ),
        experiment(
            "speedup",
            "SLIDE over dense training on one machine: time to a precision",
            ([_LAPTOP], _ON_ONE, (_LABELS, _EPOCHS, _BASELINE)),
            ([_PAPER], _ON_ONE, (_EPOCHS, _BASELINE)),
            needs_data=(False, True),
        ),
        experiment(
            "distributed",
            "Distributed SLIDE over dense model parallel on four machines: time to a precision",
            (
                [_LAPTOP_NODES],
                SpeedUps(source=_DISTRIBUTED, clock=_REPLAYED),
                (_LABELS, _EPOCHS, _BASELINE),
            ),
            ([_PAPER_NODES], SpeedUps(source=_DISTRIBUTED, clock=MeasuredClock()), (_EPOCHS, _BASELINE)),
            needs_data=(False, True),
        ),
    ),
)
