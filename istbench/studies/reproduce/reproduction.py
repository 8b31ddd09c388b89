"""The tables, pictures and files of a reproduction, made of the runs in a results directory."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from istbench.base.files import write_errors, writing_whole
from istbench.report.output.formats import table_markdown, tables_csv
from istbench.report.output.pictures import draw_plots
from istbench.report.plots.plot import Plot
from istbench.report.tables.table import Table
from istbench.results.load import Run, load_runs
from istbench.studies.reproduce.cells import Overrides, of_latest_data, subjects_of
from istbench.studies.reproduce.paper import Experiment, Paper, Scale
from istbench.studies.reproduce.tables import compared_table


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """Our figures beside those of a paper.

    Attributes:
        tables: of each experiment its comparison, then further ones. plots: pictures.
        problems: a line for each run that is left out. unreadable: those for damaged ones.
    """

    tables: tuple[Table, ...]
    plots: tuple[Plot, ...]
    problems: tuple[str, ...]
    unreadable: tuple[str, ...] = ()


def runs_in(results: Path) -> tuple[list[Run], list[str]]:
    """The runs in `results`, and a line for each unreadable one; none if the directory has no runs yet.

    Raises:
        UserError: if `results` is unreadable.
    """
    try:
        empty = not any(path.is_dir() for path in (results / "runs").iterdir())
    except FileNotFoundError:
        empty = True
    except OSError:
        empty = False  # load_runs reports it
    return ([], []) if empty else load_runs(results)


def reproduction(
    experiments: Sequence[Experiment],
    scale: Scale,
    overrides: Overrides,
    results: Path,
    fresh: Collection[str] = (),
) -> Reproduction:
    """The `experiments` of a paper beside its figures, as far as the runs in `results` go.

    fresh: names of the cells of this command.

    Raises:
        UserError: if `results` is unreadable.
    """
    runs, unreadable = runs_in(results)
    runs, others = of_latest_data((experiment.at[scale] for experiment in experiments), overrides, runs, fresh)
    problems = [*unreadable, *others]
    tables: list[Table] = []
    plots: list[Plot] = []
    for experiment in experiments:
        extent = experiment.at[scale]
        subjects = subjects_of(extent, overrides, runs, fresh)
        found = extent.measure.compare(subjects)
        tables += [compared_table(experiment, scale, subjects, found), *found.tables]
        plots += found.plots
        problems += found.problems
    return Reproduction(
        tables=tuple(tables),
        plots=tuple(plots),
        problems=tuple(dict.fromkeys(problems)),
        unreadable=tuple(unreadable),
    )


def write_files(paper: Paper, scale: Scale, only: Sequence[str], found: Reproduction, folder: Path) -> list[Path]:
    """Write the tables as markdown and CSV, and the pictures, into `folder`; returns the paths.

    only: the tables that the user named, for the names of the files; none for the whole paper.

    Raises:
        UserError: if they cannot be written.
    """
    stem = "-".join([paper.name, scale, *only])
    pictures = draw_plots(found.plots, folder)
    shown = "".join(f"![{path.stem}]({path.name})\n" for path in pictures if path.suffix == ".png")
    tables = "\n".join(table_markdown(table) for table in found.tables)
    contents = {
        folder / f"{stem}.md": f"# {paper.title}: published and ours, at {scale} scale\n\n{tables}\n{shown}",
        folder / f"{stem}.csv": tables_csv(found.tables),
    }
    return [*write_texts(contents), *pictures]


def write_texts(contents: Mapping[Path, str]) -> list[Path]:
    """Write each text to its path; returns the paths.

    Raises:
        UserError: if one cannot be written.
    """
    for path, text in contents.items():
        with write_errors(path), writing_whole(path) as file:
            file.write(text.encode())
    return list(contents)
