"""A sink: another place for the evaluations of one run."""

from abc import ABC, abstractmethod
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from istbench.base.files import require_no_link
from istbench.base.options.options import option_text
from istbench.base.options.run import TELLING_APART
from istbench.results.events import Evaluation
from istbench.results.header import Header, Status
from istbench.results.metrics import without_clashes

Parameter = str | int | float | bool


class EvaluationSink(ABC):
    """Takes the evaluations of the run of `header` in order, off the train clock.

    An instance is made at the first evaluation. So imports of other packages belong into `__init__`. If a method
    raises or hangs, the run goes on without the sink.

    A run that resumes makes another instance, and first gives it all evaluations up to the checkpoint again. An
    earlier instance may have taken some of them, and others after the checkpoint that no longer count.

    Args:
        where: the directory or the address to write to, as the user typed it.
        resumed_at: the local step of the checkpoint from which the run resumes. None for a run from the start.

    Attributes:
        packages: the packages that it imports. requirement: what pip installs, if it has another name.
        began: the start of the run, seconds since 1970.
    """

    packages: ClassVar[tuple[str, ...]] = ()
    requirement: ClassVar[str] = ""

    def __init__(self, header: Header, where: str, resumed_at: int | None) -> None:
        self.header, self.where, self.resumed_at = header, where, resumed_at
        text = header.started_at
        self.began = (datetime.fromisoformat(text) if text else datetime.now(UTC)).timestamp()

    @abstractmethod
    def evaluation(self, evaluation: Evaluation) -> None:
        """Take an evaluation."""

    @abstractmethod
    def close(self, status: Status) -> None:
        """Take the end of the run as `done`, `failed` or `interrupted`."""

    def at(self, evaluation: Evaluation) -> float:
        """The start of the run plus the train seconds of `evaluation`: a relative time axis shows train seconds."""
        return self.began + evaluation.train_s


def default_place(results: Path, name: str, way_out: str) -> Path:
    """The directory of sink `name` for all runs in `results`.

    Raises:
        UserError: it is a link, or has one in the place of a directory of the sink; the message ends in `way_out`.
    """
    place = require_no_link(results / name, way_out)
    with suppress(OSError):
        for entry in place.iterdir():
            if not entry.is_file():
                require_no_link(entry, way_out)
    return place


def scalars(evaluation: Evaluation) -> dict[str, float]:
    """The numbers of `evaluation` by name. A metric that is not a number is left out."""
    own = {
        "train_loss": evaluation.train_loss,
        "train_s": evaluation.train_s,
        "wall_s": evaluation.wall_s,
        "samples": evaluation.samples,
        "bytes_sent_per_node": evaluation.bytes_sent_per_node,
        "bytes_received_per_node": evaluation.bytes_received_per_node,
    }
    found = {**without_clashes(evaluation.metrics, own), **own}
    return {name: float(value) for name, value in found.items() if value is not None}


def parameters(header: Header) -> dict[str, Parameter]:
    """The settings that define the run, by name: method, workload, nodes, seed and all options."""
    config = header.config
    told = {**{name: getattr(config, name) for name in TELLING_APART}, "threads": header.threads}
    options = {
        **{name: value for name, value in told.items() if value is not None},
        **config.workload_options,
        **config.method_options,
    }
    return {
        "method": header.method,
        "workload": header.workload,
        "nodes": header.nodes,
        "seed": header.seed,
        "batch_size": header.batch_size,
        "budget": header.budget,
        "data": header.data,
        "data_fingerprint": header.data_source.fingerprint,
        **{name: value if isinstance(value, Parameter) else option_text(value) for name, value in options.items()},
    }
