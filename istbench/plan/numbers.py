"""A training step from numbers alone: as a record that every replay takes, and a cluster. Needs no torch."""

import dataclasses
import math
import re
from dataclasses import dataclass
from pathlib import Path

from istbench.base.decode import read_text
from istbench.base.errors import UserError, shown
from istbench.base.units import counted
from istbench.cluster.profile import ClusterProfile, SharedHost, bandwidth_text, load_profile
from istbench.cluster.script_record import DType, RecordedModule, RecordedParameter, ScriptRecord
from istbench.cluster.this_machine import NodesLikeHere, machines_of
from istbench.cluster.trace import TraceMeta

EQUAL_LAYERS = 16
MOST_FLOPS = 5e15
"""Operations a second that no device of today reaches."""
NOMINAL = 10e9
"""Bits/s above which a link rarely carries its name's rate."""
LEAST_CARRIED = 0.2
MOST_REPLAYED = 256
"""Nodes of an estimate."""
_INSIDE = 96e9  # bits/s of PCIe 3 with 16 lanes
_OF_A_PARAMETER = 6  # operations for a sample, forward and backward
_INSIDE_LATENCY_S = 10e-6
_MOST_LAYERS = 10_000
_DIMENSION = re.compile(r"[0-9]{1,12}")
_V100 = "p3.2xlarge"


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Parameters that become ready together."""

    name: str
    shape: tuple[int, ...]

    @property
    def parameters(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """A step and its network.

    Attributes:
        parameters: of the model. step_s: seconds of a step of one node without communication. samples: of a node's
            minibatch; None if unknown. nodes: of all hosts. gpus_per_host: nodes of a host.
        bandwidth: of a host's link, bits/s, by name; None for the cluster's. latency_s: from host to host, one way.
        backward: share of the step in the backward pass. layers: in the order of the model; by default equal ones.
        cluster: a profile of links, or None.
    """

    parameters: int
    step_s: float
    nodes: int
    samples: int | None = None
    gpus_per_host: int = 1
    bandwidth: float | None = None
    latency_s: float | None = None
    dtype: DType = "float32"
    backward: float = 0.67
    layers: tuple[Layer, ...] = ()
    cluster: ClusterProfile | None = None

    def check(self) -> None:
        """Refuse numbers that contradict each other.

        Raises:
            UserError: naming the two.
        """
        if self.nodes > MOST_REPLAYED:
            raise UserError(
                f"{self.nodes:,} nodes take hours to replay message by message; name at most {MOST_REPLAYED}"
            )
        least = _OF_A_PARAMETER * self.parameters * (self.samples or 1) / MOST_FLOPS
        if self.step_s < least:
            raise UserError(
                f"--step {self.step_s:.3g}s is shorter than its arithmetic: {_samples(self.samples or 1)} of "
                f"{self.parameters:,} parameters take {least:.3g} s at 5 PFLOP/s, more than any device has"
            )
        if self.nodes % self.gpus_per_host:
            raise UserError(
                f"{self.nodes} nodes do not fill hosts of {self.gpus_per_host} GPUs; name a multiple, or another "
                "--gpus-per-host"
            )
        total = sum(layer.parameters for layer in self.layers)
        if self.layers and total != self.parameters:
            raise UserError(
                f"the layers have {total:,} parameters together, but --parameters is {self.parameters:,}; name "
                "one number"
            )

    @property
    def hosts(self) -> int:
        return self.nodes // self.gpus_per_host

    @property
    def placed(self) -> str:
        """`2 hosts of 8 GPUs (16 nodes)`, or `4 nodes`."""
        if self.gpus_per_host == 1:
            return counted(self.nodes, "node")
        hosts = counted(self.hosts, "host")
        return f"{hosts} of {self.gpus_per_host} GPUs ({self.nodes} nodes)"

    @property
    def node_name(self) -> str:
        """`GPU` where a host has several nodes, else `node`."""
        return "node" if self.gpus_per_host == 1 else "GPU"

    @property
    def nominal(self) -> bool:
        """Whether the bandwidth is a name that links rarely carry, without a measured profile."""
        return self.cluster is None and self.bandwidth is not None and self.bandwidth > NOMINAL


def record_of(numbers: Numbers) -> ScriptRecord:
    """The record of a script with these numbers.

    Forward and backward passes spend time on a layer by its parameters. Its gradient is ready at its end.
    """
    layers = numbers.layers or _equal_layers(numbers.parameters)
    forward = numbers.step_s * (1 - numbers.backward)
    done = 0
    parameters = []
    for place, layer in enumerate(layers):
        before, done = done, done + layer.parameters
        parameters.append(
            RecordedParameter(
                names=(f"{layer.name}.weight",),
                shape=layer.shape,
                dtype=numbers.dtype,
                place=place,
                used_s=forward * before / numbers.parameters,
                ready_s=forward + (numbers.step_s - forward) * (1 - before / numbers.parameters),
            )
        )
    known = load_profile(_V100) if numbers.cluster is None else numbers.cluster
    return ScriptRecord(
        script="your numbers",
        step_s=numbers.step_s,
        samples_s=(numbers.step_s,),
        update_s=0.0,
        before_update_s=0.0,
        parameters=tuple(reversed(parameters)),
        modules=(RecordedModule(name=""), *(RecordedModule(name=name) for name in _module_names(layers))),
        optimizers=("AdamW",),
        state_tensors=2,
        state_bytes=2 * sum(own.bytes for own in parameters),
        memory_bytes=known.memory_bytes,
        machine=TraceMeta(
            nodes=1,
            batch_size=numbers.samples,
            gflops=known.gflops,
            memory_gb_per_s=known.memory_gb_per_s,
            device="cuda" if known.cores is None else "cpu",
            threads=None if known.cores is None else max(1, round(known.cores)),
        ),
        notes=(
            f"the step was typed, not recorded; a replay on another cluster takes its machine for a {known.name}",
            f"gradients become ready evenly over {numbers.backward:.0%} of the step",
        ),
    )


class _NodesOfProfile(NodesLikeHere):
    """Their links are those of a profile, whose figures count no headers."""

    payload = 1.0


def cluster_of(numbers: Numbers, record: ScriptRecord) -> ClusterProfile:
    """The cluster of `numbers`, whose nodes take the seconds of `record`."""
    profile: ClusterProfile = machines_of(record)
    if numbers.cluster is not None:
        profile = _NodesOfProfile(**{**vars(numbers.cluster), "speeds": ()})  # the step is of each node
    if numbers.latency_s is not None:
        profile = dataclasses.replace(profile, latency_s=numbers.latency_s)
    if numbers.bandwidth is not None:
        profile = profile.with_bandwidth(numbers.bandwidth)
    if numbers.gpus_per_host == 1:
        return dataclasses.replace(profile, host=None, name=network_name(profile))
    host = profile.host or SharedHost(
        nodes=numbers.gpus_per_host,
        bandwidth=max(_INSIDE, profile.bandwidth_out),
        latency_s=min(_INSIDE_LATENCY_S, profile.latency_s),
    )
    host = dataclasses.replace(host, nodes=numbers.gpus_per_host)
    return dataclasses.replace(profile, host=host, name=network_name(profile))


def network_name(profile: ClusterProfile) -> str:
    """`links of 25 Gbit/s and 60 µs`."""
    seconds = profile.latency_s
    latency = f"{seconds * 1e3:g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:g} µs"
    shared = [("an uplink", profile.rack and profile.rack.uplink), ("a backplane", profile.backplane)]
    others = "".join(f", {what} of {bandwidth_text(rate / profile.payload, 3)}" for what, rate in shared if rate)
    return f"links of {bandwidth_text(profile.bandwidth_out / profile.payload, 3)} and {latency}{others}"


def read_layers(path: Path) -> tuple[Layer, ...]:
    """The layers in a CSV file with lines `name,parameters`, or `name,1024x4096` for a matrix.

    Raises:
        UserError: naming the file and the line.
    """
    layers = dict[str, Layer]()
    for number, line in enumerate(read_text(path, "a CSV file with lines such as layer1,1000000").splitlines(), 1):
        name, _, size = (part.strip() for part in line.partition(","))
        if not line.strip() or (number == 1 and size in ("parameters", "shape")):
            continue
        parts = size.lower().split("x")
        known = len(parts) <= 8 and all(map(_DIMENSION.fullmatch, parts))
        if not known or not name or not all(name.split(".")) or not 0 < math.prod(map(int, parts)) < 2**45:
            raise UserError(f"{path}, line {number}: {shown(line)} is not name,parameters or name,1024x4096")
        if name in layers:
            raise UserError(f"{path}, line {number}: {shown(name)} stands twice")
        layers[name] = Layer(name=name[:400], shape=tuple(map(int, parts)))
    if not 0 < len(layers) <= _MOST_LAYERS:
        raise UserError(f"{path} has {len(layers):,} layers; 1 to {_MOST_LAYERS:,} are possible")
    return tuple(layers.values())


def _equal_layers(parameters: int) -> tuple[Layer, ...]:
    count = min(EQUAL_LAYERS, parameters)
    ends = [parameters * number // count for number in range(count + 1)]
    return tuple(Layer(name=f"layer{number}", shape=(ends[number + 1] - ends[number],)) for number in range(count))


def _samples(count: int) -> str:
    return f"{count:,} sample{'s' if count > 1 else ''}"


def _module_names(layers: tuple[Layer, ...]) -> list[str]:
    """The layers and the modules around them."""
    names = {}
    for layer in layers:
        parts = layer.name.split(".")
        names.update(dict.fromkeys(".".join(parts[:end]) for end in range(1, len(parts) + 1)))
    return list(names)
