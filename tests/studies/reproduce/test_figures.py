"""Published figures, read from a file."""

from pathlib import Path

import pytest
from garbage import one_line, quick
from hypothesis import given
from hypothesis import strategies as st

import istbench
from istbench.base.errors import UserError
from istbench.studies.reproduce.figures import Figure, read_rows

SHIPPED = Path(istbench.__file__).parent / "studies" / "reproduce" / "published" / "figures.csv"
COLUMNS = "paper,workload,options,method,method_options,nodes,metric,level,seconds,value,note\n"


def test_figures_shipped_are_of_workloads_and_methods_there_are():
    figures = read_rows(SHIPPED, Figure)
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
        read_rows(path, Figure)
    assert message in one_line(caught.value)
    assert str(path) in one_line(caught.value)


@quick(150)
@given(st.text(max_size=60), st.text(max_size=10))
def test_any_text_is_figures_or_refused(tmp_path_factory, line, cell):
    path = tmp_path_factory.mktemp("figures") / "figures.csv"
    path.write_text(f"{COLUMNS}A,speech,,ist,,8,accuracy,{cell},3,,\n{line}\n", newline="")
    try:
        figures = read_rows(path, Figure)
    except UserError as error:
        one_line(error)
    else:
        assert all(isinstance(figure, Figure) for figure in figures)
