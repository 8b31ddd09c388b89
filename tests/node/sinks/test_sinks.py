"""Sinks, read back by the readers of the tools that they write for."""

import json
from typing import ClassVar

import msgspec
import pytest
from fake_runs import evaluation, header, resume, write_run

from istbench.base.errors import UserError
from istbench.node import destinations as node_sinks
from istbench.node.destinations import Destinations, RequestedSink, RunFiles
from istbench.node.registry import load_sink
from istbench.node.sinks.base import EvaluationSink
from istbench.results.events import Note

STARTED = "2026-11-02T10:00:00+00:00"
PARTS = [[(0, 0.1), (50, 0.4), (100, 0.6), (150, 0.7)], [(150, 0.75), (200, 0.8)]]
KEPT = [(0, 0.1), (50, 0.4), (100, 0.6), (150, 0.75), (200, 0.8)]


@pytest.fixture
def run(results):
    return write_run(results, header("ist", started_at=STARTED, status="running"), [])


def feed(run, text, points, status):
    """One process's part of a run: it gives a sink these evaluations, and ends."""
    with Destinations([RunFiles(run), *([RequestedSink(text, run)] if text else [])]) as sinks:
        for step, value in points:
            found = evaluation(step, step / 10, value, sent=1000 * step)
            # A metric that was not a number, and a name with a character of its own.
            sinks.record(
                msgspec.structs.replace(found, metrics={**found.metrics, "precision@1": 0.5, "loss": None})
            )
        if status == "done":
            sinks.finish(None)
        if status == "failed":
            raise ValueError("no good")


def feed_both_parts(run, text, *, first=True):
    """Both parts of a run that resumes; with `first` false, the user requests the sink on the resume."""
    feed(run, text if first else "", PARTS[0], "interrupted")
    run.append(resume(100))
    feed(run, text, PARTS[1], "done")
    assert not [event for event in run.events() if isinstance(event, Note)]


@pytest.mark.parametrize("first", [True, False])
def test_tensorboard_reads_a_resumed_run_as_one_curve_over_train_seconds(run, results, first):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    feed_both_parts(run, "tensorboard", first=first)
    found = reader.EventAccumulator(str(results / "tensorboard" / run.path.name))
    found.Reload()
    points = found.Scalars("accuracy")
    assert [(point.step, round(point.value, 4)) for point in points] == KEPT
    assert [point.wall_time - points[0].wall_time for point in points] == pytest.approx([0, 5, 10, 15, 20])
    assert {"precision@1", "train_s", "train_loss", "bytes_sent_per_node"} <= set(found.Tags()["scalars"])
    assert "loss" not in found.Tags()["scalars"]
    assert found.PluginTagToContent("hparams")


def test_mlflow_reads_a_resumed_run_as_one_run(run, results):
    mlflow = pytest.importorskip("mlflow")
    feed_both_parts(run, "mlflow")
    client = mlflow.MlflowClient(tracking_uri=str(results / "mlflow"))
    (experiment,) = [known for known in client.search_experiments() if known.name == "speech"]
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.status, found.info.run_name) == ("FINISHED", run.path.name)
    assert (found.data.params["method"], found.data.params["lr"]) == ("ist", "0.1")
    assert found.data.metrics["precision_at_1"] == 0.5
    points = sorted(
        (point.timestamp, point.step, point.value)
        for point in client.get_metric_history(found.info.run_id, "accuracy")
    )
    assert [point[1:] for point in points if point[1:] in KEPT] == KEPT
    assert len(points) == len(KEPT) + 1  # and one after the checkpoint
    feed(run, "mlflow", PARTS[0], "interrupted")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "KILLED"


def test_mlflow_has_the_evaluations_for_which_its_server_was_away(run, results, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    feed(run, "mlflow", [(0, 0.05)], "interrupted")  # of an older run of the cell, which `--again` replaced
    run.events_jsonl.unlink()
    run.update(started_at="2026-11-03T10:00:00+00:00")
    logged = mlflow.MlflowClient.log_batch

    def away(client, run_id, metrics=(), **told):
        if any(metric.step == 100 for metric in metrics):
            raise ConnectionError("no server")
        logged(client, run_id, metrics=metrics, **told)

    with monkeypatch.context() as patch:
        patch.setattr(mlflow.MlflowClient, "log_batch", away)
        feed(run, "mlflow", PARTS[0], "interrupted")
    run.append(resume(100))
    feed(run, "mlflow", PARTS[1], "done")
    client = mlflow.MlflowClient(tracking_uri=str(results / "mlflow"))
    (experiment,) = [known for known in client.search_experiments() if known.name == "speech"]
    found, older = client.search_runs([experiment.experiment_id])
    curves = [client.get_metric_history(one.info.run_id, "accuracy") for one in (found, older)]
    assert [sorted((point.step, point.value) for point in curve) for curve in curves] == [KEPT, [(0, 0.05)]]


def test_mlflow_has_the_whole_curve_of_a_run_that_requests_it_on_a_resume(run, results):
    mlflow = pytest.importorskip("mlflow")
    feed_both_parts(run, "mlflow", first=False)
    client = mlflow.MlflowClient(tracking_uri=str(results / "mlflow"))
    (experiment,) = [known for known in client.search_experiments() if known.name == "speech"]
    (found,) = client.search_runs([experiment.experiment_id])
    points = client.get_metric_history(found.info.run_id, "accuracy")
    assert sorted((point.step, point.value) for point in points) == KEPT


@pytest.mark.processes
def test_wandb_reads_the_parts_of_an_offline_run_as_runs_of_a_group(run, results):
    proto = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    feed_both_parts(run, "wandb")
    paths = (results / "wandb").rglob("*.wandb")
    parts = [[proto.Record.FromString(content) for content in records_of(path)] for path in paths]
    curves = sorted(curve_of(records) for records in parts)
    assert curves == sorted([PARTS[0], KEPT])
    runs = [next(record.run for record in records if record.HasField("run")) for records in parts]
    assert {(found.display_name, found.run_group) for found in runs} == {(run.path.name, run.path.name)}
    assert len({found.run_id for found in runs}) == 2
    codes = [record.exit.exit_code for records in parts for record in records if record.HasField("exit")]
    assert sorted(codes) == [0, 1]


def curve_of(records):
    """The steps and accuracies in records of wandb."""
    found = []
    for record in records:
        if record.HasField("history"):
            values = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            found.append((values["_step"], values["accuracy"]))
    return found


def records_of(path):
    """The records in a file of wandb: after a header of 7 bytes, blocks as a log of LevelDB has them."""
    content, place, part = path.read_bytes(), 7, b""
    while place + 7 <= len(content):
        if place % 32768 > 32768 - 7:  # the rest of a block is empty
            place += -place % 32768
            continue
        size, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        part += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield part
            part = b""


def lines_of(path):
    lines = path.read_text().splitlines()
    assert all(line.startswith(":::MLLOG ") for line in lines)
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]


def test_mlperf_log_lines_have_the_run_between_its_start_and_its_stop(run, results):
    feed(run, "mllog", PARTS[0], "done")
    lines = lines_of(results / "mllog" / f"{run.path.name}.log")
    for line in lines:
        assert list(line) == ["namespace", "time_ms", "event_type", "key", "value", "metadata"]
    by_key = {line["key"]: line for line in lines}
    assert by_key["seed"]["value"] == 0
    assert by_key["global_batch_size"]["value"] == 256
    assert by_key["run_start"]["event_type"] == "INTERVAL_START"
    assert lines[-1]["key"] == "run_stop"
    assert (lines[-1]["event_type"], lines[-1]["metadata"]) == ("INTERVAL_END", {"status": "success"})
    points = [line for line in lines if line["key"] == "eval_accuracy"]
    assert [(line["metadata"]["step_num"], line["value"]) for line in points] == PARTS[0]
    assert [line["metadata"]["epoch_num"] for line in points] == [0.0, 12.8, 25.6, 38.4]
    assert lines[-1]["time_ms"] - by_key["run_start"]["time_ms"] == 15_000


@pytest.mark.parametrize("first", [True, False])
def test_mlperf_log_lines_of_a_resumed_run_are_those_of_one_that_never_stopped(run, results, first):
    feed_both_parts(run, "mllog", first=first)
    lines = lines_of(results / "mllog" / f"{run.path.name}.log")
    points = [(line["metadata"]["step_num"], line["value"]) for line in lines if line["key"] == "eval_accuracy"]
    assert points == KEPT
    for key in ("seed", "run_start", "global_batch_size", "run_stop"):
        assert [line["key"] for line in lines].count(key) == 1
    assert lines[-1]["metadata"] == {"status": "success"}


@pytest.mark.parametrize(
    ("status", "target", "said"),
    [
        ("failed", None, "aborted"),
        ("interrupted", None, "aborted"),
        ("done", 0.9, "aborted"),
        ("done", 0.7, "success"),
    ],
)
def test_the_end_of_a_run_reaches_the_sink(results, status, target, said):
    head = header("ist", started_at=STARTED, status="running")
    head["config"]["target"] = target
    run = write_run(results, head, [])
    if status == "failed":
        with pytest.raises(ValueError, match="no good"):
            feed(run, "mllog", PARTS[0], status)
    else:
        feed(run, "mllog", PARTS[0], status)
    assert lines_of(results / "mllog" / f"{run.path.name}.log")[-1]["metadata"] == {"status": said}


class Broken(EvaluationSink):
    """Raises, or hangs, at the evaluation of step 100."""

    taken: ClassVar = []

    def evaluation(self, evaluation):
        if evaluation.step == 100:
            self.at_100()
        self.taken.append(evaluation.step)

    def at_100(self):
        raise SystemExit("a library that exits\nwith lines")

    def close(self, status):
        raise AssertionError("a lost sink is left alone")


class Hanging(Broken):
    def at_100(self):
        node_sinks.threading.Event().wait(5)


@pytest.mark.parametrize(
    ("kind", "why"),
    [(Broken, "SystemExit: a library that exits"), (Hanging, "TimeoutError: it did not return")],
)
def test_a_sink_that_raises_or_hangs_is_left_behind_with_one_line(run, results, monkeypatch, kind, why):
    monkeypatch.setattr(kind, "taken", [])
    monkeypatch.setattr(node_sinks, "_LONGEST_S", 0.1)
    monkeypatch.setattr(node_sinks, "load_sink", lambda text: kind)
    feed(run, "broken", PARTS[0], "done")
    (note,) = [event for event in run.events() if isinstance(event, Note)]
    assert note.urgent
    assert note.message.startswith(f"sink broken: {why}")
    assert note.message.endswith("; the run goes on without it")
    assert "\n" not in note.message
    assert kind.taken == [0, 50]


def test_names_places_and_packages_of_sinks_are_checked(monkeypatch):
    with pytest.raises(UserError, match="unknown sink 'tensorbord'; did you mean 'tensorboard'"):
        load_sink("tensorbord")
    with pytest.raises(UserError, match="--sink 'mllog=' names no place"):
        load_sink("mllog=")
    assert load_sink("mllog=http://a/b?c=d").__name__ == "MLPerfLog"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"sink wandb needs wandb, which is not installed: pip install wandb"):
        load_sink("wandb")
