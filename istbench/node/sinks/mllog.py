"""MLPerf's log lines: `:::MLLOG {json}`, in DIR/CELL.log.

Format and keys are those of MLCommons' mlperf_logging: namespace, time_ms, event_type, key, value, metadata.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from istbench.base.files import fresh_file
from istbench.node.sinks.base import EvaluationSink, Parameter, parameters
from istbench.results.events import Evaluation
from istbench.results.header import Header, Status

_Type = Literal["INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"]


class MLPerfLog(EvaluationSink):
    """MLPerf's log lines in DIR/CELL.log. They are no submission to MLPerf, whose benchmarks have fixed models."""

    def __init__(self, header: Header, where: str, resumed_at: int | None) -> None:
        super().__init__(header, where, resumed_at)
        self._file = fresh_file(Path(where) / f"{header.cell}.log")
        self._now, self._reached, self._batch_known = self.began, header.config.target is None, False
        options = parameters(header)
        facts: dict[str, Parameter | None] = {
            "submission_benchmark": header.workload_label,
            "submission_division": "open",
            "seed": header.seed,
            "train_samples": header.data_source.train,
            "eval_samples": header.data_source.test,
            "opt_base_learning_rate": options.get("lr"),
        }
        for key, value in facts.items():
            if value is not None:
                self._write("POINT_IN_TIME", key, value)
        self._write("INTERVAL_START", "run_start", None, options)

    def evaluation(self, evaluation: Evaluation) -> None:
        """Write the metric as `eval_accuracy`, with its name and the epoch."""
        if evaluation.step and not self._batch_known:
            self._batch_known = True
            self._write("POINT_IN_TIME", "global_batch_size", evaluation.samples // evaluation.step)
        metric, train, target = self.header.own_metric, self.header.data_source.train, self.header.config.target
        value = evaluation.metrics.get(metric.name)
        self._now = self.at(evaluation)
        self._reached = self._reached or (target is not None and metric.reached(value, target))
        about: dict[str, Parameter] = {
            "metric": metric.name,
            "epoch_num": evaluation.samples / train if train else 0.0,
            "step_num": evaluation.step,
            "samples_count": evaluation.samples,
            "train_s": float(evaluation.train_s),
        }
        self._write("POINT_IN_TIME", "eval_accuracy", value, about)

    def close(self, status: Status) -> None:
        """Write the end: success for a run that is done and reached its target, if it had one."""
        ended = "success" if status == "done" and self._reached else "aborted"
        self._write("INTERVAL_END", "run_stop", None, {"status": ended})
        self._file.close()

    def _write(
        self, event_type: _Type, key: str, value: Parameter | None, metadata: Mapping[str, Parameter] | None = None
    ) -> None:
        line = {
            "namespace": "",
            "time_ms": int(1000 * self._now),
            "event_type": event_type,
            "key": key,
            "value": value,
            "metadata": dict(metadata or {}),
        }
        self._file.write(f":::MLLOG {json.dumps(line)}\n".encode())
        self._file.flush()
