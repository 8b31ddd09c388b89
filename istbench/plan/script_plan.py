"""The plan of a recorded script: its memory, bytes and seconds by a method on a cluster."""

from collections.abc import Sequence

from istbench.base.errors import UserError
from istbench.base.options.numbers import MOST_NODES
from istbench.cluster.estimate import CellPlan, NodeMemory, fewest, fits
from istbench.cluster.in_turns import turns_on
from istbench.cluster.profile import ClusterProfile
from istbench.cluster.scale import on_gpus
from istbench.cluster.script_record import ScriptRecord
from istbench.plan.memory import node_memory
from istbench.plan.script_time import ChosenMethod, script_time
from istbench.plan.script_trace import PlannedScript

TIMING_ONLY = "timing only: a script's loss and accuracy by these methods are unknown"


def plan_script(
    record: ScriptRecord, method: ChosenMethod, nodes: int, cluster: ClusterProfile, assumed: Sequence[str] = ()
) -> CellPlan:
    """The plan of `record` by `method`. assumed: phrases about the cluster.

    Raises:
        UserError: if the method cannot train such a model on these nodes, or its rounds do not replay.
    """
    planned = PlannedScript.of(record, method, nodes)
    time = script_time(record, method, planned.trace(), cluster)
    steps = planned.method.round_steps
    speeds = cluster.speeds_of(nodes)

    def suits(count: int) -> bool:
        try:
            there = PlannedScript.of(record, method, count)
        except UserError:
            return False
        return bool(fits(_memory(there, cluster), int(cluster.memory_gib * 2**30)))

    return CellPlan(
        workload=record.script,
        method=method.label,
        nodes=nodes,
        batch_size=None,
        cluster=cluster,
        model_parameters=sum(parameter.numel() for parameter in planned.model.parameters()),
        memory=_memory(planned, cluster),
        sent=round(time.sent * steps),
        seconds=time.step_s * steps,
        compute_seconds=time.alone_s * speeds[0] / min(speeds) * steps,  # node 0 alone, then the slowest node
        round_steps=steps,
        fewest_nodes=fewest(suits, MOST_NODES),
        assumed=(*assumptions(record), *assumed, *planned.footprint.notes),
    )


def assumptions(record: ScriptRecord) -> tuple[str, ...]:
    """The assumptions behind figures of a recorded script, a phrase each."""
    machine = record.machine
    device = (
        "a GPU"
        if machine.device == "cuda"
        else f"{machine.threads or 'some'} thread{'' if machine.threads == 1 else 's'} of processors"
    )
    lines = [
        TIMING_ONLY,
        f"every node computes each step in the recorded {record.step_s:.3g} s, scaled from {device} to the cluster",
    ]
    if record.backward_passes > 1:
        lines.append(f"the exchange belongs to the last of the {record.backward_passes} backward passes of a step")
    return (*lines, *record.notes)


def _memory(planned: PlannedScript, cluster: ClusterProfile) -> NodeMemory:
    return node_memory(
        planned.footprint,
        planned.cost,
        on_gpu=on_gpus(cluster),
        backend=cluster.collectives,
        distant=planned.nodes if turns_on(cluster, planned.nodes) else 0,
        stepping=False,
    )
