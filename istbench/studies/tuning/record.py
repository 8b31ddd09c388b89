"""A tuning as one JSON object."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from istbench.results.metrics import Metric
from istbench.studies.tuning.judge import Contest, Judge, Judgement
from istbench.studies.tuning.ranges import Range
from istbench.studies.tuning.trials import Tried


def record(
    judgement: Judgement, judge: Judge, ranges: Mapping[str, Sequence[Range]], suite: Path | None
) -> dict[str, Any]:
    """The object that `istbench tune --json` prints; null for a diverged metric and for a missed target."""
    header, metric = judgement.header, judgement.metric
    return {
        "workload": header.workload,
        "metric": metric.name,
        "lower_is_better": metric.lower_is_better,
        "judged_by": judge.words(metric.name, header.budget),
        "target": judge.target,
        "cluster": judge.cluster.name if judge.cluster is not None and judge.by_seconds else None,
        "budget": header.budget,
        "seed": header.seed,
        "held_out": header.config.held_out or None,
        "data_seen": header.data_source.seen,
        "trials": len(judgement.contests[0].tried),
        "ranges": {method: [_range(own) for own in found] for method, found in ranges.items()},
        "methods": [_contest(contest, metric) for contest in judgement.contests],
        "suite": None if suite is None else str(suite),
    }


def _range(own: Range) -> dict[str, Any]:
    return {"name": own.name, "low": own.low, "high": own.high, "scale": own.scale, "whole": own.whole}


def _contest(contest: Contest, metric: Metric) -> dict[str, Any]:
    return {
        "method": contest.method,
        "nodes": contest.nodes,
        "best": None if contest.best is None else _tried(contest.best, metric),
        "trials": [_tried(tried, metric) for tried in contest.tried],
    }


def _tried(tried: Tried, metric: Metric) -> dict[str, Any]:
    return {
        "number": tried.trial.number,
        "options": tried.trial.typed_options,
        "cell": tried.cell or None,
        "failed": tried.failed,
        metric.name: tried.value,
        "seconds": tried.seconds,
    }
