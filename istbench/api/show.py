"""Shows a report: draws its pictures beside the results, writes its page and prints its tables."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

from istbench.base.errors import UserError
from istbench.base.files import require_no_link
from istbench.report.output import Format
from istbench.report.output.formats import print_notes, print_results
from istbench.report.output.pictures import draw_plots
from istbench.report.report import Report


def page_beside(results: Path) -> Path:
    """The file of the page that `compare` and `replay` write beside the pictures."""
    return results / "report" / "page.html"


def report_folder(results: Path) -> Path:
    """The directory of the pictures and the page of `results`.

    Raises:
        UserError: it is a link.
    """
    return require_no_link(results / "report", "draw no pictures there (--no-pictures)")


def show_report(
    report: Report,
    results: Path,
    *,
    pictures: bool = True,
    beside: Path | None = None,
    page: Path | None = None,
    quiet: bool = False,
    output_format: Format = "table",
    **shown: Any,
) -> None:
    """Print `report`, draw its plots into `results/report`, if `pictures`, and write its page.

    beside: another directory, whose `report` gets the pictures. page: the file of the page; None writes none.
    quiet: print the answer and the table alone, and no lines about pictures and runs left out. shown: the other
    arguments of `print_results`.

    Raises:
        UserError: if they cannot be written, after printing the rest.
    """
    drawn, written = list[Path](), None
    # A person reads the answer while the pictures are drawn, for seconds. JSON names their files; and a pipe that
    # its reader closes early would leave none.
    first = output_format != "json" and sys.stdout.isatty()
    shown |= {"output_format": output_format, "brief": quiet}
    if first:
        print_results(report, sys.stdout, **shown)
    try:
        if pictures:
            drawn = draw_plots(report.plots, report_folder(beside or results))
        if page is not None:
            report = write_page_of(report, results, page)
            written = page
    finally:
        if not first:
            print_results(report, sys.stdout, pictures=drawn, page=written, **shown)
        if not quiet:
            print_notes(report, sys.stderr, pictures=drawn, page=written)


def write_page_of(report: Report, results: Path, file: Path) -> Report:
    """Write the page of `report` on `results`, with the last advice there, to `file`.

    Returns `report`, whose problems have a line more for all that the page leaves out, and for unreadable advice.

    Raises:
        UserError: if it cannot be written.
    """
    from istbench.report.output.html.write import write_page
    from istbench.report.page import build_page
    from istbench.studies.advise.advice_file import load_advice
    from istbench.studies.advise.advice_text import advice_section

    section = None
    try:
        advice = load_advice(results)
        section = None if advice is None else advice_section(advice)
    except UserError as error:
        report = dataclasses.replace(report, problems=(*report.problems, f"advice: {error}"))
    page = build_page(report, file, advice=section)
    write_page(page, file)
    return dataclasses.replace(report, problems=page.problems)
