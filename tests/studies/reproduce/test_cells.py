"""The cells of papers: requested once, found again, listed."""

import dataclasses

import msgspec
import pytest
from fake_runs import header, ramp, write_run

from istbench.base.decode import decode_json
from istbench.base.errors import UserError
from istbench.base.options.suite import Suite
from istbench.launch.backends.backend import Outcome
from istbench.node.registry import build_method, build_workload
from istbench.results.header import Header
from istbench.results.load import load_runs
from istbench.studies.reproduce.cells import (
    Overrides,
    is_run_of,
    of_latest_data,
    requests_of,
    select,
    subjects_of,
    with_data,
)
from istbench.studies.reproduce.figures import Figure, SpeedUpFigure, beside, read_rows
from istbench.studies.reproduce.hours import HoursLeft, forecast, forecasts, hours_left
from istbench.studies.reproduce.paper import PUBLISHED, Cells, Experiment, Extent
from istbench.studies.reproduce.papers import PAPERS
from istbench.studies.reproduce.tables import list_table, listed

SUITE = Suite(workload="speech", methods=(("ddp", {}), ("ist", {"local_steps": 20})), nodes=(8,), seeds=(0, 1))
CELLS = Cells(suite=SUITE, hours=3.0)


class NoFigures:
    def compare(self, subjects):
        raise AssertionError("nothing is compared here")


def extent(*cells):
    return Extent(cells=cells, measure=NoFigures())


@pytest.mark.parametrize("scale", ["laptop", "paper"])
@pytest.mark.parametrize("name", sorted(PAPERS))
def test_every_cell_of_a_paper_has_options_that_its_method_and_workload_know(name, scale):
    built = set()
    for experiment in select(PAPERS[name], [], scale):
        for request in requests_of([experiment.at[scale]], Overrides()):
            key = (request.workload, request.method, str(request.workload_options), str(request.method_options))
            if key not in built:
                built.add(key)
                workload = build_workload(request.workload, request.workload_options)
                build_method(request.method, request.method_options, workload=workload)
                assert request.steps or request.epochs, "a run is found again by its budget"


@pytest.mark.parametrize("scale", ["laptop", "paper"])
@pytest.mark.parametrize("name", sorted(PAPERS))
def test_every_cell_of_a_paper_is_found_again_by_its_recorded_options_and_by_no_other_cell(name, scale):
    requests = requests_of([one.at[scale] for one in select(PAPERS[name], [], scale)], Overrides(seeds=1))
    recorded = [recorded_header(request) for request in requests]
    for place, request in enumerate(requests):
        assert [at for at, head in enumerate(recorded) if is_run_of(request, head)] == [place], request


def _recorded_interval(every, steps):
    if every is None:
        return 10
    return min(steps, every.steps) if every.steps else f"{every.seconds:g}s"


def recorded_header(request):
    """The header of the run of `request`, as it is written and read again."""
    workload = build_workload(request.workload, request.workload_options)
    method = build_method(request.method, request.method_options, workload=workload)
    steps = request.steps or 100
    config = {
        "workload": request.workload, "method": request.method, "nodes": request.nodes, "seed": request.seed,
        "workload_options": dataclasses.asdict(workload.options),
        "method_options": dataclasses.asdict(method.options),
        "batch_size": request.batch_size or workload.batch_size, "steps": steps,
        "eval_every": _recorded_interval(request.eval_every, steps),
        "channels_last": request.channels_last, "device": "cpu",
    }  # fmt: skip
    head = header(
        request.method, nodes=request.nodes, workload=request.workload, config=config,
        budget=f"{request.epochs:g} epochs" if request.epochs else f"{steps} steps",
    )  # fmt: skip
    return decode_json(msgspec.json.encode(head), Header, "run.json", "")


def test_every_published_figure_has_a_table_at_paper_scale():
    extents = [one.at["paper"] for paper in PAPERS.values() for one in paper.experiments]
    subjects = [one for own in extents for one in subjects_of(own, Overrides(), (), ())]
    names = {"dense network": "model_parallel", "SLIDE": "dslide"}
    for figure in read_rows(PUBLISHED / "figures.csv", Figure):
        if figure.paper == "smol_diloco":  # scripts/bench/smol_diloco.py has its table
            continue
        failed = figure.value is None and figure.seconds is None  # the plan of memory has these
        assert failed or any(beside(figure, one, names) for one in subjects), figure
    for figure in read_rows(PUBLISHED / "speedups.csv", SpeedUpFigure):
        assert any(beside(figure, one) for one in subjects), figure


def test_cells_that_tables_share_are_requested_once():
    found = requests_of([extent(CELLS), extent(CELLS)], Overrides(seeds=1))
    assert [(request.method, request.seed) for request in found] == [("ddp", 0), ("ist", 0)]


def test_other_nodes_replace_those_of_cells_on_several_nodes(tmp_path):
    alone = Cells(suite=Suite(workload="toy", methods=(("ddp", {}),), nodes=(1,), seeds=(0,)))
    overrides = Overrides(nodes=2, data={"speech": tmp_path}, run={"threads": 1})
    found = requests_of([extent(CELLS, alone)], overrides)
    assert [(request.nodes, request.seed) for request in found] == [(2, 0), (2, 0), (1, 0), (2, 1), (2, 1)]
    assert [request.data for request in found] == [tmp_path] * 2 + [None] + [tmp_path] * 2
    assert {request.threads for request in found} == {1}


def test_a_run_belongs_to_the_request_of_its_options_nodes_seed_and_budget(results):
    write_run(results, header("ddp", nodes=8, budget="20 epochs"), ramp(9.0))
    write_run(results, header("ddp", nodes=4, budget="20 epochs"), ramp(9.0))
    write_run(results, header("ist", nodes=8, options="local_steps=20", budget="20 epochs"), ramp(9.0))
    write_run(results, header("ist", nodes=8, options="local_steps=40", budget="20 epochs"), ramp(9.0))
    write_run(results, header("ddp", nodes=8, seed=1, status="failed", budget="20 epochs"), ramp(9.0))
    runs = load_runs(results)[0]
    subjects = subjects_of(extent(CELLS), Overrides(), runs, ())
    assert [(one.label, one.seeds, len(one.runs)) for one in subjects] == [
        ("ddp", 2, 1),
        ("ist local_steps=20", 2, 1),
    ]
    longer = Cells(
        suite=Suite(workload="speech", methods=(("ddp", {}),), nodes=(8,), seeds=(0,), run={"epochs": 40})
    )
    assert not subjects_of(extent(longer), Overrides(), runs, ())[0].runs


def test_a_run_of_this_command_comes_before_another_one_of_its_request(results):
    for cell in ("old", "new"):
        write_run(results, header("ddp", nodes=8, cell=cell, budget="20 epochs"), ramp(9.0))
    runs = load_runs(results)[0]
    for cell in ("old", "new"):
        (subject, _) = subjects_of(extent(CELLS), Overrides(), runs, {cell})
        assert [run.header.cell for run in subject.runs] == [cell]


def test_hours_are_those_of_the_estimate_until_a_seed_is_done(results):
    assert [(one.done, one.hours) for one in forecast(CELLS, Overrides(), [])] == [(False, 1.5)] * 4
    write_run(results, header("ddp", nodes=8, budget="20 epochs"), ramp(3000.0))  # an hour on the wall clock
    found = forecast(CELLS, Overrides(), load_runs(results)[0])
    assert [(one.request.method, one.request.seed, one.done) for one in found if one.done] == [("ddp", 0, True)]
    assert {one.request.method: one.hours for one in found} == {"ddp": pytest.approx(1.0), "ist": 1.5}
    assert {one.hours for one in forecast(Cells(suite=SUITE), Overrides(), [])} == {None}


def test_a_cell_takes_the_share_of_its_method():
    weighted = dataclasses.replace(CELLS, hours=2.2, weights={"ddp": 10.0})
    found = {one.request.method: one.hours for one in forecast(weighted, Overrides(), [])}
    assert found == {"ddp": pytest.approx(2.0), "ist": pytest.approx(0.2)}


def test_runs_and_hours_without_data_are_not_those_of_a_command_with_data(results, tmp_path):
    write_run(results, header("ddp", nodes=8, budget="20 epochs", typed_data=""), ramp(3000.0))
    runs = load_runs(results)[0]
    given = Overrides(data={"speech": tmp_path}, seeds=1)
    first = forecast(CELLS, Overrides(seeds=1), runs)[0]
    assert (first.done, first.hours) == (True, pytest.approx(1.0))
    assert [(one.done, one.hours) for one in forecast(CELLS, given, runs)] == [(False, None)] * 2
    known = dataclasses.replace(CELLS, hours_with_data=8.0)
    assert [one.hours for one in forecast(known, given, runs)] == [4.0, 4.0]
    steps = Cells(suite=dataclasses.replace(SUITE, run={"steps": 4}), hours=3.0)
    assert [one.hours for one in forecast(steps, given, runs)] == [1.5, 1.5]


def test_a_failed_cell_does_not_set_the_pace():
    pace = HoursLeft(forecast(CELLS, Overrides(seeds=1), []))
    assert pace.after(Outcome(cell="ddp", failure=UserError("no space"))) == ", about 1.50 hours left"


def test_hours_of_cells_that_tables_share_count_once():
    short = Suite(workload="toy", methods=(("ddp", {}),), nodes=(2,), seeds=(0, 1), run={"eval_every": 27})
    cells = Cells(suite=short, hours=1.0)
    assert [one.hours for one in forecasts([extent(cells), extent(cells)], Overrides(), [])] == [1.0, 1.0]


def test_hours_left_go_at_the_pace_of_the_ended_cells():
    assert hours_left([1.0], [1.0, 2.0], elapsed=0.5) == 1.5
    assert hours_left([], [1.0, 2.0], elapsed=0.0) == 3.0
    assert hours_left([None], [None, 2.0], elapsed=0.5) == 1.0
    assert hours_left([], [None], elapsed=0.5) is None


def test_runs_on_other_data_than_the_latest_are_left_out_with_a_line(results):
    for seed, (data, day) in enumerate((("00", 1), ("11", 3), ("11", 2))):
        head = header("ddp", nodes=8, seed=seed, budget="20 epochs")
        head["data_source"] |= {"fingerprint": data}
        write_run(results, {**head, "finished_at": f"2026-01-0{day}T00:00:00+00:00"}, ramp(9.0))
    runs = load_runs(results)[0]
    kept, lines = of_latest_data([extent(CELLS)], Overrides(seeds=3), runs, ())
    assert [run.header.seed for run in kept] == [1, 2]
    assert len(lines) == 1
    first = runs[0].header.cell
    assert lines[0].startswith(f"{first}: its data are ")
    kept, _ = of_latest_data([extent(CELLS)], Overrides(seeds=3), runs, {first})
    assert [run.header.seed for run in kept] == [0]


def test_runs_with_other_threads_than_the_latest_are_left_out_with_a_line(results):
    for seed, (threads, day) in enumerate(((1, 1), (2, 3), (2, 2))):
        head = header("ddp", nodes=8, seed=seed, budget="20 epochs")
        write_run(results, {**head, "threads": threads, "finished_at": f"2026-01-0{day}T00:00:00+00:00"}, ramp(9.0))
    runs = load_runs(results)[0]
    kept, (line,) = of_latest_data([extent(CELLS)], Overrides(seeds=3), runs, ())
    assert [run.header.seed for run in kept] == [1, 2]
    assert line.endswith("its nodes have 1 thread; those of the latest have 2")
    chosen = Overrides(seeds=3, run={"threads": 1})
    assert [one.done for one in forecast(CELLS, chosen, runs) if one.request.method == "ddp"] == [
        True,
        False,
        False,
    ]


def test_the_list_counts_shared_cells_once_and_names_missing_data():
    tables = (
        Experiment(name="one", title="One", at={"laptop": extent(CELLS)}),
        Experiment(name="two", title="Two", at={"laptop": extent(CELLS)}),
        Experiment(
            name="three",
            title="Three",
            at={"laptop": Extent(cells=(CELLS,), measure=NoFigures(), needs_data=True)},
        ),
    )
    table = list_table("List", listed(tables, "laptop", Overrides(), [], ()))
    keys = [column.key for column in table.columns]
    assert [row[keys.index("hours")].text for row in table.rows] == ["6.00", "shared", "shared"]
    assert table.rows[2][keys.index("needs")].text == "--data speech=DIR"
    assert table.footer[0].startswith("4 cells to run, about 6.00 hours")


def test_a_table_without_its_data_is_left_out_or_refused_if_named():
    tables = [
        Experiment(
            name=name, title=name, at={"laptop": Extent(cells=(CELLS,), measure=NoFigures(), needs_data=own)}
        )
        for name, own in (("one", True), ("two", False))
    ]
    assert with_data(tables, "laptop", ["speech"], named=True) == (tuple(tables), [])
    kept, lines = with_data(tables, "laptop", [], named=False)
    assert ([one.name for one in kept], lines) == (
        ["two"],
        ["left out: one needs real data: give --data speech=DIR"],
    )
    for asked, named in ((tables, True), (tables[:1], False)):
        with pytest.raises(UserError, match="^one needs real data: give --data speech=DIR"):
            with_data(asked, "laptop", [], named=named)


def test_an_unknown_table_is_refused_with_the_nearest_name():
    with pytest.raises(UserError, match="unknown table 'spech' of ist; did you mean 'speech'"):
        select(PAPERS["ist"], ["spech"], "laptop")
    assert [one.name for one in select(PAPERS["ist"], ["cifar10", "speech"], "laptop")] == ["speech", "cifar10"]


def test_a_table_too_large_for_a_laptop_is_one_of_the_papers_scale() -> None:
    with pytest.raises(UserError, match="billion is too large for --scale laptop; ask for --scale paper"):
        select(PAPERS["dslide"], ["billion"], "laptop")
    assert "billion" not in [one.name for one in select(PAPERS["dslide"], [], "laptop")]
    [billion] = select(PAPERS["dslide"], ["billion"], "paper")
    [dslide, dense] = requests_of([billion.at["paper"]], Overrides())
    assert (dslide.method, dense.method, dslide.nodes) == ("dslide", "model_parallel", 4)
    assert dslide.workload_options["labels"] * 1101 + dslide.workload_options["features"] * 1100 + 1100 > 887e6
