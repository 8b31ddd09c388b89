"""A plan as a table."""

from istbench.cluster.estimate import GIB, CellPlan
from istbench.report.phrases import count_nodes, latency_line, network_line, sustained_line
from istbench.report.tables.numbers import number
from istbench.report.tables.table import Scalar, Table, items_table

_MEGA = 1e6


def plan_table(plan: CellPlan) -> Table:
    """Memory, messages and time that a cell needs, an item in each row."""
    rows: list[tuple[str, str, Scalar]] = [
        ("model parameters", f"{plan.model_parameters:,}", plan.model_parameters),
        ("fits", *_fits(plan)),
    ]
    memory = plan.memory
    if memory is not None:
        for part, size in memory.parts.items():
            name = f"MB of {part.replace('_', ' ')} per node"
            rows.append((name, "unknown" if size is None else _mb(size), None if size is None else size / _MEGA))
        total = _mb(memory.total) if memory.complete else f"at least {_mb(memory.total)}"
        rows.append(("MB in total per node", total, memory.total / _MEGA))
    rows += [
        ("local steps per round", f"{plan.round_steps:,}", plan.round_steps),
        ("MB sent per node and round", *_known(None if plan.sent is None else plan.sent / _MEGA)),
        ("seconds per round", *_known(plan.seconds)),
        ("seconds of computing per round", *_known(plan.compute_seconds)),
    ]
    if plan.width:
        rows.append((f"largest {plan.width} that fits", *_answer(plan, plan.largest_width)))
    rows.append(("fewest nodes that fit", *_answer(plan, plan.fewest_nodes)))
    return items_table(
        rows,
        title=f"{plan.workload} by {plan.method}, {count_nodes(plan.nodes)} of {plan.cluster.name}, "
        f"{_batch(plan)}: planned, not run",
        footer=(*_turns(plan), *_network(plan), f"Assumed: {'; '.join(plan.assumed)}."),
    )


def _batch(plan: CellPlan) -> str:
    return "its own batch" if plan.batch_size is None else f"batch {plan.batch_size}"


def _fits(plan: CellPlan) -> tuple[str, Scalar]:
    memory = plan.memory
    if memory is None or plan.fits is None:
        return "unknown", None
    spare, memory_gib = (plan.limit - memory.total) / GIB, f"{plan.cluster.memory_gib:g} GiB per node"
    if plan.fits:
        return f"yes, {spare:,.2f} GiB free of {memory_gib}", True
    return f"no, {-spare:,.2f} GiB more than {memory_gib}", False


def _answer(plan: CellPlan, value: int | None) -> tuple[str, Scalar]:
    known = plan.memory is not None and plan.memory.complete
    return (f"{value:,}", value) if value is not None else ("none" if known else "unknown", None)


def _known(value: float | None) -> tuple[str, Scalar]:
    return ("unknown", None) if value is None else (number(value), value)


def _mb(size: int) -> str:
    return f"{size / _MEGA:,.2f}"


def _network(plan: CellPlan) -> list[str]:
    return [
        *network_line(plan.cluster),
        *sustained_line(plan.cluster),
        *latency_line(plan.cluster.latency_s),
    ]


def _turns(plan: CellPlan) -> list[str]:
    if plan.memory is None or not plan.memory.reused:
        return []
    return [
        f"Exchange buffers take up to {_mb(plan.memory.reused)} MB more, in memory that activations no longer need."
    ]
