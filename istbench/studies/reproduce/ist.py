"""The tables of Independent Subnet Training (Yuan et al., arXiv 1910.02120)."""

from collections.abc import Mapping
from typing import Any

from istbench.base.options.suite import Suite
from istbench.studies.reproduce.clocks import Clock, FittedPoint, MeasuredClock, ReplayedClock
from istbench.studies.reproduce.curves import Curves
from istbench.studies.reproduce.finals import Finals
from istbench.studies.reproduce.memory import PlannedMemory
from istbench.studies.reproduce.paper import Cells, Difference, Experiment, Extent, Paper, experiment

_CURVES = "IST (arXiv 1910.02120)"
_FINALS = "IST (arXiv 1910.02120) table 3"
_PRECISIONS = "IST table 2"
_PAGE = "IST project page"
_THREE_SEEDS = (0, 1, 2)


def _methods(
    shared: Mapping[str, Any], ist: tuple[int, ...], local_sgd: tuple[int, ...], **of_ist: Any
) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """`ddp`, `local_sgd` and `ist`, the latter two with each number of local steps; all with `shared` options.

    of_ist: more options of `ist`.
    """
    return (
        ("ddp", dict(shared)),
        *(("local_sgd", {"local_steps": steps, **shared}) for steps in local_sgd),
        *(("ist", {"local_steps": steps, **of_ist, **shared}) for steps in ist),
    )


def _speech(layers: int, seeds: tuple[int, ...], epochs: int) -> Suite:
    return Suite(
        workload="speech",
        methods=_methods({}, (20, 40, 60), (20,)),
        nodes=(8,),
        seeds=seeds,
        workload_options={"layers": layers},
        run={"epochs": epochs},
    )


def _speech_budget(epochs: str) -> Difference:
    return Difference(aspect="budget", text=f"ours is {epochs}; the paper does not give its own.")


def _curves(workload: str, subject: str, clock: Clock, ours: str, *sources: str) -> Curves:
    return Curves(
        sources=(_CURVES, *sources),
        workload=workload,
        clock=clock,
        picture=workload,
        title=f"{subject}: published curves of IST and {ours}",
    )


# Seconds of the cells on two cores, in proportion: nodes of ist train an eighth of the width.
_WIDE = {"ddp": 10.0, "local_sgd": 7.0}
# An epoch of the synthetic words has ten steps on eight nodes, one of the recordings 82.
_SPEECH_LAPTOP = (
    Cells(suite=_speech(2, _THREE_SEEDS, 40), hours=0.24, hours_with_data=1.9, weights=_WIDE),
    Cells(suite=_speech(3, _THREE_SEEDS, 40), hours=0.48, hours_with_data=3.4, weights=_WIDE),
)
_SPEECH_PAPER = (Cells(suite=_speech(2, (0,), 60)), Cells(suite=_speech(3, (0,), 60)))
_SPEECH_FITTED = ReplayedClock(
    cluster="m5.2xlarge",
    fitted=(
        FittedPoint(method="local_sgd", level=0.77, options={"layers": "2"}, method_options={"local_steps": "20"}),
        FittedPoint(method="ddp", level=0.77, options={"layers": "2"}),
    ),
)
_BATCH_NORM = Difference(
    aspect="BatchNorm",
    text="ours estimates its statistics on training clips before each evaluation. The first public code took "
    "those of the test batch.",
)
_WORDS = Difference(
    aspect="data",
    text="without --data, 14,000 made-up clips. They have the recordings, about 84,843 training clips: more steps "
    "in an epoch.",
    made_up=True,
)

_CIFAR_LAPTOP = Cells(
    suite=Suite(
        workload="cifar10",
        methods=_methods({"schedule": "cosine", "warmup": 0.05}, (20,), (20,), deal="all"),
        nodes=(4,),
        seeds=_THREE_SEEDS,
        workload_options={"width": 16},
        run={"epochs": 5, "batch_size": 64, "channels_last": True},
    ),
    hours=0.06,
    hours_with_data=0.27,
)
_CIFAR_PAPER = Cells(
    suite=Suite(
        workload="cifar10",
        methods=_methods({}, (10, 20, 40), (10, 20, 40), deal="all"),
        nodes=(8,),
        seeds=(0,),
        run={"epochs": 120, "channels_last": True},
    )
)
_CIFAR_NARROW = (
    Difference(aspect="width", text="our ResNet18 has width 16, a quarter of the paper's 64."),
    Difference(aspect="budget", text="ours is five epochs, so the paper's levels are out of reach."),
)
_CIFAR_DATA = Difference(
    aspect="data", text="without --data or downloaded images, ours are made-up textures.", made_up=True
)
_CIFAR_UNKNOWN = Difference(
    aspect="settings", text="the paper's batch size, augmentation and learning rates are not known."
)
_CIFAR_DIFFERS = (_CIFAR_DATA, *_CIFAR_NARROW, _CIFAR_UNKNOWN)

_IMAGENET_LAPTOP = Cells(
    suite=Suite(
        workload="imagenet",
        methods=_methods({"schedule": "cosine", "warmup": 0.05}, (80, 160), (20,), deal="all"),
        nodes=(2,),
        seeds=_THREE_SEEDS,
        workload_options={"model": "vgg12", "width": 8, "resolution": 32},
        run={"epochs": 8, "batch_size": 64, "channels_last": True},
    ),
    hours=0.2,
    hours_with_data=0.2,
)
_IMAGENET_PAPER = Cells(
    suite=Suite(
        workload="imagenet",
        methods=_methods({}, (80, 120, 160), (10, 20, 40), deal="all"),
        nodes=(8,),
        seeds=(0,),
        workload_options={"model": "vgg12"},
        run={"epochs": 20, "channels_last": True},
    )
)
_IMAGENET_NARROW = (
    Difference(aspect="width", text="our VGG12 is an eighth as wide, for images of 32 x 32."),
    Difference(
        aspect="data", text="ours are the images of --data, such as 200 classes; theirs have 21,841 classes."
    ),
    Difference(aspect="budget", text="ours is eight epochs."),
)
_IMAGENET_UNKNOWN = Difference(
    aspect="settings", text="the paper's epochs, batch size and learning rates are not known; ours is 20 epochs."
)

_AMAZON_PAPER = (
    Cells(
        suite=Suite(
            workload="amazon670k",
            methods=(("ddp", {"lr": 0.01}), ("ist", {"lr": 0.01})),
            nodes=(8,),
            seeds=(0,),
            workload_options={"hidden": 512},
            run={"epochs": 10},
        )
    ),
    *(
        Cells(
            suite=Suite(
                workload="amazon670k",
                methods=(("ist", {"lr": 0.01}),),
                nodes=(8,),
                seeds=(0,),
                workload_options={"hidden": hidden},
                run={"epochs": 10},
            )
        )
        for hidden in (1024, 1536, 2048, 2560)
    ),
)
_AMAZON_LAPTOP = Cells(
    suite=Suite(
        workload="amazon670k",
        methods=(("ddp", {"lr": 0.01}), ("ist", {"lr": 0.01})),
        nodes=(4,),
        seeds=_THREE_SEEDS,
        workload_options={"hidden": 512},
        run={"epochs": 8},
    ),
    hours=0.03,
)
_AMAZON_NARROW = (
    Difference(
        aspect="data",
        text="without --data, 20,000 made-up points with 5,000 labels; theirs have 670,091. "
        "Precisions of different data do not compare.",
        made_up=True,
    ),
    Difference(aspect="width", text="ours is 512 hidden units alone, of their 512 to 2,560."),
    Difference(aspect="settings", text="the paper's optimizer is not known; ours is Adam."),
)
_AMAZON_UNKNOWN = Difference(
    aspect="settings", text="the paper's optimizer and epochs are not known; ours is Adam, ten epochs."
)
_PLANNED = Extent(
    measure=PlannedMemory(
        source=_PRECISIONS,
        cluster="p3.2xlarge",
        nodes=8,
        optimizer="adam",
        further=(
            ("ddp", "sgd"), ("zero", "adam"), ("zero", "sgd"), ("fsdp", "adam"), ("fsdp", "sgd"), ("ist", "sgd"),
        ),
    )
)  # fmt: skip

_REPLAYED, _OURS = "replays of our runs", "ours"
_V100, _MEASURED = ReplayedClock(cluster="p3.2xlarge"), MeasuredClock()
_IST_FINALS, _IST_PRECISIONS = Finals(sources=(_FINALS,)), Finals(sources=(_PRECISIONS,))

PAPER = Paper(
    name="ist",
    title="Independent Subnet Training, arXiv 1910.02120",
    experiments=(
        experiment(
            "speech",
            "Speech: seconds to accuracy, and the speed-ups of the project page",
            (
                _SPEECH_LAPTOP,
                _curves("speech", "Speech", _SPEECH_FITTED, _REPLAYED, _PAGE),
                (_WORDS, _BATCH_NORM),
            ),
            (_SPEECH_PAPER, _curves("speech", "Speech", _MEASURED, _OURS, _PAGE), (_WORDS, _BATCH_NORM)),
        ),
        experiment(
            "speech-finals",
            "Speech: final accuracies (table 3)",
            (_SPEECH_LAPTOP, _IST_FINALS, (_WORDS, _speech_budget("40 short epochs"), _BATCH_NORM)),
            (_SPEECH_PAPER, _IST_FINALS, (_WORDS, _speech_budget("60 epochs"), _BATCH_NORM)),
        ),
        experiment(
            "cifar10",
            "CIFAR-10: seconds to accuracy",
            ([_CIFAR_LAPTOP], _curves("cifar10", "CIFAR-10", _V100, _REPLAYED), _CIFAR_DIFFERS),
            ([_CIFAR_PAPER], _curves("cifar10", "CIFAR-10", _MEASURED, _OURS), (_CIFAR_DATA, _CIFAR_UNKNOWN)),
        ),
        experiment(
            "cifar10-finals",
            "CIFAR-10: final accuracies (table 3)",
            ([_CIFAR_LAPTOP], _IST_FINALS, _CIFAR_DIFFERS),
            ([_CIFAR_PAPER], _IST_FINALS, (_CIFAR_DATA, _CIFAR_UNKNOWN)),
        ),
        experiment(
            "imagenet",
            "ImageNet by VGG12: seconds to top-10 accuracy",
            ([_IMAGENET_LAPTOP], _curves("imagenet", "ImageNet", _V100, _REPLAYED), _IMAGENET_NARROW),
            ([_IMAGENET_PAPER], _curves("imagenet", "ImageNet", _MEASURED, _OURS), (_IMAGENET_UNKNOWN,)),
            needs_data=(True, True),
        ),
        experiment(
            "imagenet-finals",
            "ImageNet by VGG12: final top-10 accuracies (table 3)",
            ([_IMAGENET_LAPTOP], _IST_FINALS, _IMAGENET_NARROW),
            ([_IMAGENET_PAPER], _IST_FINALS, (_IMAGENET_UNKNOWN,)),
            needs_data=(True, True),
        ),
        experiment(
            "amazon670k",
            "Amazon-670K: precision by width (table 2)",
            ([_AMAZON_LAPTOP], _IST_PRECISIONS, _AMAZON_NARROW),
            (_AMAZON_PAPER, _IST_PRECISIONS, (_AMAZON_UNKNOWN,)),
            needs_data=(False, True),
        ),
        Experiment(
            name="amazon670k-memory",
            title="Amazon-670K: the widths that fit on a V100 (the failures of table 2)",
            at={"laptop": _PLANNED, "paper": _PLANNED},
        ),
    ),
)
