"""The lines of events.jsonl."""

import msgspec

from istbench.config.numbers import Duration, Natural
from istbench.results.header import Git, Host, Metrics, Status


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Where one part of a run trained, up to where it stopped; as in the header, which tells of the last part."""

    host: Host = Host()
    versions: dict[str, str] = {}
    git: Git | None = None


class Start(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="start"):
    """Training starts from initial weights."""

    step: Natural = 0
    time: str = ""
    part: Part | None = None


class Resume(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="resume"):
    """Training goes on from the checkpoint of `step`; -1 where there is none, and it starts anew.

    Attributes:
        damage: a line on a newer checkpoint that is damaged; empty where none is.
    """

    step: int
    time: str = ""
    part: Part | None = None
    damage: str = ""


class Note(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="note"):
    """A line that the method has for the user."""

    message: str


class Evaluation(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="evaluation"):
    """One evaluation of the assembled model.

    Attributes:
        step: local steps done. samples: training samples seen by all nodes together.
        train_s, wall_s: the two clocks, seconds. assemble_s, evaluate_s: what this evaluation took off the clock.
        bytes_sent_per_node, bytes_received_per_node: training traffic of the busiest node since the start.
        train_loss: mean since the evaluation before; None at the start and where it was not a number.
        metrics: by name; None where one was not a number.
    """

    step: Natural
    samples: Natural
    train_s: Duration
    wall_s: Duration
    assemble_s: Duration
    evaluate_s: Duration
    bytes_sent_per_node: Natural
    bytes_received_per_node: Natural
    train_loss: float | None
    metrics: Metrics


class Fault(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="fault"):
    """Why a run failed."""

    message: str
    time: str = ""


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="stop"):
    """The run ended, for now or for good; `step` is that of its last evaluation."""

    status: Status
    step: Natural = 0
    time: str = ""


Event = Start | Resume | Note | Evaluation | Fault | Stop
