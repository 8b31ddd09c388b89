"""A timeline in the Trace Event Format, which ui.perfetto.dev and chrome://tracing open."""

from typing import Any

from istbench.report.timeline import Span, Timeline

_THREAD_NAMES = ("training", "network")


def trace_events(timeline: Timeline, title: str) -> dict[str, Any]:
    """The JSON object: a process a node, a thread for training and one for each transfer under way at once."""
    events: list[dict[str, Any]] = []
    for node in range(timeline.nodes):
        events.append(_named("process_name", node, 0, f"node {node}"))
        events.append(_named("thread_name", node, 0, _THREAD_NAMES[0]))
        free: list[float] = []
        for span in timeline.spans:
            if span.node != node:
                continue
            lane = 0 if span.kind != "transfer" else 1 + _lane(free, span)
            events.append(_event(span, lane))
        events += [_named("thread_name", node, 1 + lane, _THREAD_NAMES[1]) for lane in range(len(free))]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"title": title}}


def _lane(free: list[float], span: Span) -> int:
    """The first lane whose last transfer is over; slices of one lane must not overlap."""
    for lane, until in enumerate(free):
        if until <= span.start:
            free[lane] = span.end
            return lane
    free.append(span.end)
    return len(free) - 1


def _event(span: Span, lane: int) -> dict[str, Any]:
    to = f" to {span.peer}" if span.kind == "transfer" and span.peer >= 0 else ""
    name = {"communication": f"wait: {span.name}", "idle": f"idle: {span.name}"}.get(span.kind, span.name)
    return {
        "ph": "X",
        "name": f"{name}{to}",
        "cat": span.kind,
        "ts": span.start * 1e6,
        "dur": span.seconds * 1e6,
        "pid": span.node,
        "tid": lane,
        "args": {"bytes": span.bytes} if span.kind == "transfer" else {},
    }


def _named(what: str, node: int, lane: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": node, "tid": lane, "args": {"name": name}}
