"""The scale of recorded seconds of computing on another cluster.

A step lasts as long as its matrix products and convolutions take at a machine's GFLOP/s, and its other operations
at its memory bandwidth. A recorded step lasts longer or shorter than that; a replay keeps this ratio.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from istbench.base.errors import UserError
from istbench.cluster.profile import ClusterProfile
from istbench.cluster.speed import Speed, StepWork

if TYPE_CHECKING:
    from istbench.cluster.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Seconds on a cluster for one recorded second.

    Attributes:
        compute: of the training thread. low, high: its range by what is known of both machines; None if unknown.
        work: of work in other threads of a node.
        lacks: what the trace or the profile lacks for scaling by more than matrix products, in a few words.
    """

    compute: float
    low: float | None = None
    high: float | None = None
    work: float = 1.0
    lacks: str = ""


def scale(trace: "Trace", profile: ClusterProfile) -> Scale:
    """The scale of the recorded seconds of `trace` on `profile`.

    By matrix products alone where the trace or the profile lacks figures of memory.

    Raises:
        UserError: for a trace without calibration, or a method with kernels for processors on a cluster of GPUs.
    """
    return trace.derived("scale", profile, lambda: _scale(trace, profile))


def _scale(trace: "Trace", profile: ClusterProfile) -> Scale:
    if trace.gflops is None:
        raise UserError(
            "the trace lacks the speed of the machine that recorded it; "
            "record it again with `istbench run --again`, or give the compute scale"
        )
    meta = trace.meta
    if meta.work is not None and meta.work.gathered and on_gpus(profile):
        raise UserError(
            f"a node of {profile.name} computes on a GPU (its profile has no `cores`), and this method has kernels "
            "for processors only; choose a cluster of processors"
        )
    work = _scale_of_threads(trace, profile)
    there = speed_of(profile)
    if meta.work is None or meta.memory_gb_per_s is None or there is None:
        lacks = f"the profile of {profile.name}" if there is None else "the trace"
        return Scale(compute=trace.gflops / profile.gflops, work=work, lacks=lacks)
    here = Speed(gflops=trace.gflops, memory_gb_per_s=meta.memory_gb_per_s, gather_gb_per_s=meta.gather_gb_per_s)
    if there.gather_gb_per_s is None:  # compare like with like
        here = msgspec.structs.replace(here, gather_gb_per_s=None)
    modelled = here.seconds(meta.work)
    if not modelled:
        return Scale(compute=trace.gflops / profile.gflops, work=work, lacks="the trace")
    compute = there.seconds(meta.work) / modelled
    # By each speed alone that the step depends on.
    ratios = [here.gflops / there.gflops, here.memory_gb_per_s / there.memory_gb_per_s]
    if meta.work.gathered and here.gather_gb_per_s and there.gather_gb_per_s:
        ratios.append(here.gather_gb_per_s / there.gather_gb_per_s)
    low, high = _range(trace, meta.work, compute, modelled, ratios)
    return Scale(compute=compute, low=low, high=high, work=work)


def on_gpus(profile: ClusterProfile) -> bool:
    """Whether a node of `profile` computes on a GPU."""
    return profile.cores is None


def speed_of(profile: ClusterProfile) -> Speed | None:
    """The speed of a node of `profile`; None without its memory bandwidth."""
    if profile.memory_gb_per_s is None:
        return None
    return Speed(
        gflops=profile.gflops,
        memory_gb_per_s=profile.memory_gb_per_s,
        gather_gb_per_s=profile.gather_gb_per_s,
    )


def _scale_of_threads(trace: "Trace", profile: ClusterProfile) -> float:
    """A thread beside training sums and copies, as fast as memory feeds its core. Unknown: as recorded.

    A recording with one thread knows the speed of a core alone, one with more threads only their shares. Where the
    profile lacks a core's speed, a core there is as fast as here, up to all of the node's memory.
    """
    here, threads = trace.meta.memory_gb_per_s, trace.meta.threads
    there, cores = profile.memory_gb_per_s, profile.cores
    if trace.meta.device != "cpu" or not here or not threads or not there or not cores:
        return 1.0
    if threads > 1:
        return (here / threads) / (there / max(1.0, cores))
    return here / (profile.core_gb_per_s or min(here, there))


def _range(
    trace: "Trace", work: StepWork, compute: float, modelled: float, ratios: list[float]
) -> tuple[float, float]:
    """The range of `compute`.

    The recorded seconds of a step that `modelled` lacks may scale by any of `ratios`. The speed of the recording
    machine is known as well as its measurements agree.
    """
    recorded = trace.computing_s / trace.steps if trace.steps else modelled
    unexplained = 1 - min(recorded / modelled, modelled / recorded) if recorded else 0.0
    moments = sorted(moment.seconds(work) for moment in trace.meta.moments)
    steady = math.sqrt(moments[0] / moments[-1]) if moments and moments[0] else 1.0
    ends = sorted([compute, *ratios])
    low = compute + unexplained * (ends[0] - compute)
    high = compute + unexplained * (ends[-1] - compute)
    return low * steady, high / steady
