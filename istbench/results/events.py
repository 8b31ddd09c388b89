"""The lines of events.jsonl."""

import hashlib
from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from istbench.base.options.numbers import MOST_NODES, Count, Duration, Natural, Nodes, Threads
from istbench.base.options.texts import Message, Short, message_of
from istbench.results.header import Git, HostRecord, Metrics, Status, Versions


class _Clipped(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a line whose texts are as long as readers accept, at most."""

    def __post_init__(self) -> None:
        for name in {"cause", "damage", "message"} & {*self.__struct_fields__}:
            msgspec.structs.force_setattr(self, name, message_of(getattr(self, name)))


class RunPart(msgspec.Struct, frozen=True, kw_only=True):
    """Machine, versions and source tree of one part of a run. The header holds those of the last part."""

    host: HostRecord
    threads: Threads
    versions: Versions
    git: Git | None


class Start(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="start"):
    """Training starts from initial weights."""

    step: Natural = 0
    time: Short
    part: RunPart


class Loss(_Clipped, frozen=True, kw_only=True):
    """The loss of a worker, a host or a link, after which a run starts again by itself.

    Attributes:
        cause: the line that names the worker or the host.
        noticed: the time when the launcher had noticed the loss and ended all workers, in seconds since 1970.
        noticing_s: seconds until then, from the last step, evaluation or checkpoint.
        redone_steps, redone_s: local steps since the checkpoint, and their seconds; the run does them again.
    """

    cause: Message
    noticed: Duration
    noticing_s: Duration
    redone_steps: Natural
    redone_s: Duration


class Return(msgspec.Struct, frozen=True, kw_only=True):
    """Lost nodes are back: the line that names them, and when, in seconds since 1970."""

    cause: Message
    noticed: Duration


class Resize(_Clipped, frozen=True, kw_only=True):
    """A change of the number of nodes (`--elastic`), from `before` to `after`.

    Attributes:
        cause: the line that names what was lost, or is back. noticed: when, in seconds since 1970.
    """

    before: Nodes
    after: Nodes
    cause: Message
    noticed: Duration


class Resume(_Clipped, frozen=True, kw_only=True, tag_field="event", tag="resume"):
    """Training resumes from the checkpoint of `step`. A step of -1 stands for a new start without checkpoint.

    Attributes:
        damage: a line about a newer, damaged checkpoint; empty without one.
        loss: the loss after which the run resumes by itself (`--restarts`); None if a command resumes it.
        resize: the change of the number of nodes; None if it stays.
    """

    step: Annotated[int, Meta(ge=-1, le=2**62)]
    time: Short
    part: RunPart
    damage: Message = ""
    loss: Loss | None = None
    resize: Resize | None = None


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="ready"):
    """All nodes have read the checkpoint of `step` (0 without one) after a loss or a change, and train on.

    Attributes:
        starting_s: seconds from the notice of it until all nodes were connected and set up.
        loading_s: seconds of reading the checkpoint.
    """

    step: Natural
    starting_s: Duration
    loading_s: Duration


class Speeds(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="speeds"):
    """The speeds of unequal nodes that a run measured for `--shares speed`; all its parts share samples by them.

    Attributes:
        speeds: by rank, relative to the fastest. step_s: seconds that each node computed in a step on equal shares.
    """

    speeds: Annotated[tuple[Annotated[float, Meta(gt=0, le=1)], ...], Meta(max_length=MOST_NODES)]
    step_s: Annotated[tuple[Duration, ...], Meta(max_length=MOST_NODES)]


class Note(_Clipped, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="note"):
    """A line from the method or from a worker to the user. urgent: the user sees it while the run trains."""

    message: Message
    urgent: bool = False


class Evaluation(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="evaluation"):
    """One evaluation of the assembled model.

    Attributes:
        step: local steps done. samples: training samples seen by all nodes together.
        train_s, wall_s: the two clocks, in seconds. assemble_s, evaluate_s: seconds that train_s leaves out.
        bytes_sent_per_node, bytes_received_per_node: training traffic of the busiest node since the start.
        train_loss: mean since the previous evaluation; None at the start, and if it is not a number.
        metrics: by name; None if a metric is not a number.
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


class Stall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="stall"):
    """Something outside training held up a local step: `train_s` counts the time all the same.

    Attributes:
        step: local steps done after it. seconds: of the step, beyond the usual seconds of such a step.
        operation: the activity meanwhile; empty for several stalls.
        rank: the rank that held up the others; None if all ranks waited for one another, as on a broken link.
        count: number of stalls whose seconds the event sums up.
    """

    step: Natural
    seconds: Duration
    operation: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    rank: Natural | None = None
    count: Count = 1


class Fault(_Clipped, frozen=True, kw_only=True, tag_field="event", tag="fault"):
    """The reason of a failed run."""

    message: Message
    time: Short


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="stop"):
    """The run ended, or a signal interrupted it. `step` is the step of its last evaluation."""

    status: Status
    step: Natural
    time: Short


Event = Start | Resume | Ready | Speeds | Note | Evaluation | Stall | Fault | Stop


def speeds_of(events: Iterable[Event]) -> tuple[float, ...]:
    """The speeds that a run measured, by rank; empty if it measured none since its start."""
    found: tuple[float, ...] = ()
    for event in events:
        if isinstance(event, Start | Speeds):
            found = event.speeds if isinstance(event, Speeds) else ()
    return found


def counted(events: Iterable[Event]) -> list[Evaluation | Stall]:
    """The evaluations and stalls that count: a run that resumed at step s has lost those after s."""
    kept: list[Evaluation | Stall] = []
    for event in events:
        if isinstance(event, Start):
            kept = []
        elif isinstance(event, Resume):
            kept = [before for before in kept if before.step <= event.step]
        elif isinstance(event, Evaluation | Stall):
            kept.append(event)
    return kept


def digest_with(before: str, evaluation: Evaluation) -> str:
    """The digest of evaluations that end in `evaluation`; `before` is that of the ones before it, "" for none."""
    # A worker has whole numbers where a reader of its line has floats.
    read = msgspec.json.decode(msgspec.json.encode(evaluation), type=Evaluation)
    return hashlib.sha256(before.encode() + msgspec.json.encode(read)).hexdigest()
