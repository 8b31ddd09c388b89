"""Published figures beside ours: read from a file, matched, and compared."""

from pathlib import Path

import msgspec
import pytest
from fake_runs import evaluation, header, ramp, write_run
from garbage import one_line, quick
from hypothesis import given
from hypothesis import strategies as st

import istbench
from istbench.base.errors import UserError
from istbench.report.published import Figure, read_figures
from istbench.report.report import build_report

SHIPPED = Path(istbench.__file__).parent / "studies" / "reproduce" / "published" / "figures.csv"
COLUMNS = "paper,workload,options,method,method_options,nodes,metric,level,seconds,value,note\n"


def table_beside(results, path, lines):
    path.write_text(COLUMNS + "".join(f"{line}\n" for line in lines))
    tables = build_report(results, published=read_figures(path)).tables
    (table,) = [table for table in tables if "beside published" in table.title]
    return table


def test_times_and_finals_stand_beside_those_of_the_same_method_options_and_nodes(results, tmp_path):
    for nodes, seconds in ((2, 9.0), (4, 18.0)):
        write_run(results, header("ist", nodes=nodes, options="local_steps=20"), ramp(seconds))
    table = table_beside(
        results,
        tmp_path / "figures.csv",
        [
            "A,speech,,ist,local_steps=20,4,accuracy,0.8,32,,read off a curve",
            "A,speech,,ist,local_steps=40,4,accuracy,0.8,32,,",
            "A,speech,,ddp,,4,accuracy,0.8,50,,",
            "B,speech,,ist,,,accuracy,,,0.6,",
            "B,speech,layers=3,ist,,,accuracy,,,0.7,",
            "B,cifar10,,ist,,,accuracy,,,0.7,",
        ],
    )
    assert [row[1].text for row in table.rows] == ["ist local_steps=20", "ddp", "ist"]
    ours, ratios = ([row[place] for row in table.rows] for place in (5, 6))
    assert [entry.text for entry in ours] == ["16.0", "–", "0.900 on 2, 0.900 on 4"]
    assert [entry.text for entry in ratios] == ["0.500", "–", "–"]
    assert ours[2].value["4_median"] == 0.9
    assert any(line.startswith("Left out: 1 figures") for line in table.footer)
    assert "Published: read off a curve." in table.footer


def test_several_of_ours_on_as_many_nodes_are_told_apart(results, tmp_path):
    for steps, value in ((20, 0.9), (40, 0.8)):
        write_run(results, header("ist", nodes=4, options=f"local_steps={steps}"), ramp(9.0, value))
    table = table_beside(results, tmp_path / "figures.csv", ["B,speech,,ist,,,accuracy,,,0.6,"])
    ((*_, ours),) = table.rows
    assert ours.text == "0.900 by ist local_steps=20 on 4, 0.800 by ist local_steps=40 on 4"
    assert ours.value["ist local_steps=20 4_median"] == 0.9


def test_a_miss_is_no_ratio_and_a_failure_no_number(results, tmp_path):
    write_run(results, header("ist", nodes=8), [evaluation(0, 0.0, 0.0), evaluation(100, 9.0, 0.5)])
    table = table_beside(
        results,
        tmp_path / "figures.csv",
        [
            "A,speech,,ist,,8,accuracy,0.8,32,,",
            "A,speech,,ist,,8,accuracy,,,,does not fit",
            "A,speech,,ist,,8,top5,,,0.9,",
        ],
    )
    assert [row[5].text for row in table.rows] == ["∞ 0/1", "0.500"]
    assert [row[4].text for row in table.rows] == ["32.0", "failed"]
    assert "ours_over_published" not in {column.key for column in table.columns}


def test_a_loss_stands_beside_a_published_one(results, tmp_path):
    head = {"metric": "loss", "lower_is_better": True, "targets": []}
    events = [
        msgspec.structs.replace(event, metrics={"loss": value})
        for event, value in zip(ramp(9.0), (4.0, 3.8, 2.0), strict=True)
    ]
    write_run(results, header("ist", nodes=8, **head), events)
    table = table_beside(
        results,
        tmp_path / "figures.csv",
        ["A,speech,,ist,,8,loss,2.9,9,,", "A,speech,,ist,,8,loss,1.5,9,,", "A,speech,,ist,,8,loss,,,1.6,"],
    )
    assert [row[5].text for row in table.rows] == ["4.95", "∞ 0/1", "2.000"]
    assert [row[6].text for row in table.rows] == ["0.550", "–", "1.25"]


def test_figures_shipped_are_of_workloads_and_methods_there_are():
    figures = read_figures(SHIPPED)
    assert len(figures) == 136
    assert {figure.workload for figure in figures} == {"speech", "cifar10", "imagenet", "amazon670k", "text"}
    (first,) = [f for f in figures if f.options == {"layers": "2"} and f.method == "ddp" and f.level == 0.63]
    assert (first.seconds, first.nodes, first.metric) == (465, 8, "accuracy")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "unknown column 'no columns'"),
        ("paper,workload,speed\n", "unknown column 'speed'"),
        (COLUMNS + "A,speech\n", "line 2 does not have as many columns as line 1"),
        (COLUMNS + "A,speech,,ist,,8,accuracy,0.8,,,\n", "line 2 needs level and seconds, or a value"),
        (COLUMNS + "A,speech,,ist,,8,accuracy,0.8,3,0.9,\n", "line 2 needs level and seconds, or a value"),
        (COLUMNS + "A,speech,,ist,,none,accuracy,0.8,3,,\n", "line 2: nodes"),
        (COLUMNS + "A,speech,,ist,,8,accuracy,nan,3,,\n", "line 2: level"),
        (COLUMNS + "A,speech,layers,ist,,8,accuracy,0.8,3,,\n", "line 2: options 'layers' is not of the form"),
        (COLUMNS + ",speech,,ist,,8,accuracy,0.8,3,,\n", "line 2: paper"),
        (COLUMNS + 'A,"speech,,ist\n', "unexpected end of data"),
    ],
)
def test_a_table_that_is_none_is_named_by_its_line(tmp_path, text, message):
    path = tmp_path / "figures.csv"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        read_figures(path)
    assert message in one_line(caught.value)
    assert str(path) in one_line(caught.value)


@quick(150)
@given(st.text(max_size=60), st.text(max_size=10))
def test_any_text_is_figures_or_refused(tmp_path_factory, line, cell):
    path = tmp_path_factory.mktemp("figures") / "figures.csv"
    path.write_text(f"{COLUMNS}A,speech,,ist,,8,accuracy,{cell},3,,\n{line}\n", newline="")
    try:
        figures = read_figures(path)
    except UserError as error:
        one_line(error)
    else:
        assert all(isinstance(figure, Figure) for figure in figures)
