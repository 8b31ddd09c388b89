"""MLflow: a run for each cell, in the experiment of its workload."""

import os
from typing import TYPE_CHECKING, ClassVar

from istbench.node.sinks.base import EvaluationSink, parameters, scalars
from istbench.results.events import Evaluation
from istbench.results.header import Header, Status

if TYPE_CHECKING:
    from mlflow.entities import Experiment

_CELL = "istbench.cell"
_ALWAYS = "train_s"  # a metric of every evaluation
_STATUS: dict[Status, str] = {"done": "FINISHED", "failed": "FAILED", "interrupted": "KILLED", "running": "RUNNING"}
# A server that does not answer must not hold up the run. MLflow 3 keeps runs in a directory only if asked to, and
# reports nothing to its makers.
_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


class MLflow(EvaluationSink):
    """Runs of MLflow, in a directory or on a server (http://...)."""

    packages: ClassVar[tuple[str, ...]] = ("mlflow",)
    requirement: ClassVar[str] = "mlflow-skinny"

    def __init__(self, header: Header, where: str, resumed_at: int | None) -> None:
        super().__init__(header, where, resumed_at)
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric, self._client = Metric, MlflowClient(tracking_uri=where)
        self._start = int(1000 * self.began)
        experiment = self._experiment()
        earlier = None if resumed_at is None else self._earlier(experiment)
        self._taken: set[int] = set()  # steps up to the checkpoint that the run has from an earlier part
        if earlier is not None and resumed_at is not None:
            self._run = earlier
            self._client.update_run(self._run, status="RUNNING")
            # A server that was away took none of them from some step on.
            steps = [metric.step for metric in self._client.get_metric_history(self._run, _ALWAYS)]
            self._taken.update(step for step in steps if step <= resumed_at)
            return
        tags = {_CELL: header.cell, "mlflow.runName": header.cell}
        made = self._client.create_run(experiment, start_time=self._start, tags=tags)
        self._run = str(made.info.run_id)
        options = [Param(name, str(value)) for name, value in parameters(header).items()]
        self._client.log_batch(self._run, params=options)

    def _experiment(self) -> str:
        name = self.header.workload_label
        found: Experiment | None = self._client.get_experiment_by_name(name)
        return str(self._client.create_experiment(name) if found is None else found.experiment_id)

    def _earlier(self, experiment: str) -> str | None:
        """The run that the earlier part began; None if the server took none of it, also if it has older runs."""
        same = f"tags.`{_CELL}` = '{self.header.cell}' and attributes.start_time = {self._start}"
        runs = self._client.search_runs([experiment], same, max_results=1)
        return str(runs[0].info.run_id) if runs else None

    def evaluation(self, evaluation: Evaluation) -> None:
        """Log each number as a metric, unless the run has it from an earlier part."""
        if evaluation.step in self._taken:
            return
        now = int(1000 * self.at(evaluation))
        metrics = [
            self._metric(_name(name), value, now, evaluation.step) for name, value in scalars(evaluation).items()
        ]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self, status: Status) -> None:
        self._client.set_terminated(self._run, status=_STATUS[status])


def _name(metric: str) -> str:
    """The name of a metric in the characters that MLflow allows: `precision_at_1` for `precision@1`."""
    return "".join(
        letter if letter.isalnum() or letter in "_-./ " else "_" for letter in metric.replace("@", "_at_")
    )
