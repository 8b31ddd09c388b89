"""The content of run.json: configuration, machine and result of a run."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from istbench.base.options.data_source import DataSource
from istbench.base.options.numbers import MOST_NODES, Count, Duration, Levels, Natural, Nodes, Seed, Threads
from istbench.base.options.options import OptionValues
from istbench.base.options.run import RunConfig
from istbench.base.options.task_file import CodeName
from istbench.base.options.texts import Message, Short, Text
from istbench.results.metrics import Metric

SCHEMA = 2
TIMING_RULE = 4

Status = Literal["running", "done", "failed", "interrupted"]
CellName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}\Z")]
"""The name of a cell, which is also the name of its run directory. It is no path, and no option of a program."""
Name = Annotated[str, Meta(min_length=1, max_length=4096)]
Unit = Annotated[str, Meta(max_length=100)]
Versions = Annotated[dict[Short, Short], Meta(max_length=100)]
Metrics = Annotated[dict[Text, float | None], Meta(max_length=10_000)]
"""Metrics by name; None if a metric is not a finite number."""


class HostRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machines of a run, most often one, and the links of its lab.

    Attributes:
        name: names of all machines, with commas. count: number of machines. cores: their sum, None if unknown.
        machine: architecture of rank 0. lab: description of the links.
    """

    name: Annotated[str, Meta(max_length=100 * MOST_NODES)]
    count: Count = 1
    cores: Count | None
    machine: Short
    lab: Text | None = None

    @property
    def cores_words(self) -> str:
        """`8 cores`; `6 cores together` for several machines; empty if unknown."""
        together = " together" if self.count > 1 else ""
        return f"{self.cores} cores{together}" if self.cores else ""

    def words(self, kind: str) -> str:
        """`lab3 (8 cores, x86_64)`: the name, and all that is known of cores, `kind` of machine and lab."""
        about = ", ".join(filter(None, [self.cores_words, kind, self.lab]))
        return f"{self.name} ({about})" if about else self.name


class Git(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The commit of the source tree of istbench, and whether the tree had changes."""

    commit: Short
    dirty: bool

    @property
    def words(self) -> str:
        """`0123456789ab with changes`."""
        return self.commit[:12] + (" with changes" if self.dirty else "")


class NodeSeconds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Train seconds of one node, by activity.

    Attributes:
        host: name of the machine in the last part of the run.
        computing_s: all seconds without waiting: batches, training, and on a shared core the turns of other nodes.
        waiting_s: seconds inside operations with other nodes, for the nodes or for the network.
    """

    rank: Natural
    host: Text
    computing_s: Duration
    waiting_s: Duration


class Result(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Result of a finished run: totals of all its parts, and its last evaluation.

    Attributes:
        bytes_sent_per_node, bytes_received_per_node: training traffic of the busiest node.
        peak_memory_bytes_per_node: during training; None if the system does not report it.
        weights_sha256: of the assembled model's parameters and buffers.
        node_seconds: of each node, by rank.
    """

    steps: Natural
    samples: Natural
    train_s: Duration
    wall_s: Duration
    train_loss: float | None
    final: Metrics
    bytes_sent_per_node: Natural
    bytes_received_per_node: Natural
    peak_memory_bytes_per_node: Natural | None
    weights_sha256: Short
    node_seconds: Annotated[tuple[NodeSeconds, ...], Meta(max_length=MOST_NODES)]


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run's header.

    Attributes:
        schema: version of this format. timing_rule: version of the rules of train_s.
        cell: name of the cell. workload_label, method_label: names with the options that are not defaults.
        metric: name of the workload's own metric. lower_is_better: its direction.
        unit: of the metric, for readers. targets: levels of the metric to report, the easiest first.
        control_nodes: number of nodes of the row that belongs beside this one; None for none.
        narrowed: options of the workload whose model is as wide as the part that a node trains; empty if nodes
            train the whole model, or for a workload without such options.
        data: the kind of data. typed_data: the value of --data; empty without it.
        threads: intra-op threads of each node, in the last part of the run.
        budget: how long it may train, in words. takes_shares: what its method divides among unequal nodes
            (`--shares`); empty if it cannot.
        minibatches_a_step: minibatches of a node in an optimizer step. accumulation, compresses: as in `Method`.
        versions: of istbench, torch and Python.
    """

    schema: int
    timing_rule: Annotated[int, Meta(ge=1, le=1000)]
    cell: CellName
    status: Status
    workload: CodeName
    workload_label: Name
    method: CodeName
    method_label: Name
    nodes: Nodes
    seed: Seed
    threads: Threads
    control_nodes: Nodes | None
    narrowed: OptionValues
    batch_size: Count
    metric: Name
    lower_is_better: bool
    unit: Unit
    targets: Levels
    parameters: Natural
    data: Name
    typed_data: Text
    data_source: DataSource
    config: RunConfig
    budget: Message
    versions: Versions
    host: HostRecord
    git: Git | None
    takes_shares: Literal["", "samples", "units"] = ""
    minibatches_a_step: Count = 1
    accumulation: Count = 1
    compresses: bool = False
    error: Message | None = None
    result: Result | None = None
    started_at: Short | None = None
    finished_at: Short | None = None

    @property
    def own_metric(self) -> Metric:
        return Metric(self.metric, lower_is_better=self.lower_is_better, unit=self.unit)


class _Versioned(msgspec.Struct):
    schema: Any = None


def schema_of(content: bytes) -> Any:
    """The schema version in JSON `content`; None without one.

    Raises:
        ValueError: if it holds no object.
    """
    try:
        return msgspec.json.decode(content, type=_Versioned).schema
    except msgspec.ValidationError:
        raise ValueError("it holds no JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return SCHEMA  # decoding the whole content gives a better message
