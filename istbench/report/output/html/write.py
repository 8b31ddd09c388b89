"""Write a page as one HTML file that needs no network."""

import base64
import functools
import hashlib
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from istbench.base.csv_text import FORMULA, NUMBER
from istbench.base.errors import UserError
from istbench.base.files import writing_whole
from istbench.report.map import NEVER_RUN, WinnerMap
from istbench.report.output.html.vega_lite import (
    DASHES,
    SHAPES,
    bars_spec,
    clipped,
    map_spec,
    map_width,
    panel_specs,
)
from istbench.report.page import Page
from istbench.report.palette import on_dark
from istbench.report.phrases import ROUGH, Caution
from istbench.report.plots.plot import Bars, Plot
from istbench.report.tables.table import Entry

VENDORED = ("vega.min.js", "vega-lite.min.js", "vega-interpreter.js")
"""The chart libraries in `vendor/`, in the order in which a page loads them."""

# The interpreter comes as a module, and a script inside a page can import nothing.
_IMPORT, _EXPORT = r"^import (\{.+?\}) from .vega-util.;$", r"^export \{ (\w+) as expressionInterpreter \};$"

_LONGEST_TEXT = 20_000

# How to read each table: on a page, a path such as docs/tables.md leads nowhere.
_GUIDES = {
    "faults": (
        "Faults are simulated: each ends all nodes, which lose what they computed since the last checkpoint, and "
        "the seconds of a restart. No fault comes during a restart."
    ),
    "measured-faults": (
        "Computing is that of the steps that count. Lost are steps since the checkpoint that were done again; "
        "noticing ends when all workers have ended, and restarting when all train again. Checkpointing is the rest "
        "between training and evaluations."
    ),
    "the-main-table": (
        "The seconds are those of the slowest node, for computing, exchanging and waiting, without evaluation. The "
        "time to a target is that of the first evaluation at it or better, interpolated linearly from the one "
        "before. A speed-up is the median over seeds of a seed's ratio to the baseline on as many nodes."
    ),
    "crossings": (
        "Times are medians over seeds, interpolated linearly in logarithms between the replayed bandwidths. "
        "“Throughout” means at all of these bandwidths."
    ),
    "computing-and-waiting-by-node": (
        "Waiting is the time inside operations with other nodes: for the nodes or for the network. Computing is "
        "the rest: batches, training and updates, and on a shared core the turns of other nodes."
    ),
    "where-the-time-goes": (
        "Shares are means over nodes. Communication is waiting for an operation that all its nodes have started; "
        "idle is waiting until another node starts its part. What a node sends while it computes counts as compute."
    ),
    "maps": (
        "Each cell has the method that reaches the target first, and the seconds of the next one over its own. Too "
        "close: the ranges over seeds overlap, each first widened by the largest error of that method's replays in "
        "a lab. Others missed: no other method reached the target with more than half of its seeds."
    ),
}
_BEFORE = "How to read this table: docs/"

_MARKS = (f"{ROUGH}:", f"{NEVER_RUN}:")


def write_page(page: Page, path: Path) -> None:
    """Write `page` to `path`, over an existing file.

    Raises:
        UserError: if it cannot be written.
    """
    content = page_html(page).encode("utf-8", "backslashreplace")
    try:
        with writing_whole(path) as file:
            file.write(content)
    except OSError as error:
        raise UserError(f"cannot write the page {path}: {error.strerror or error}; name another file") from None


def page_html(page: Page) -> str:
    """`page` as HTML. Its policy lets the browser run only the scripts whose digests it names, and load nothing."""
    scripts = [*(_as_script(_file(f"vendor/{name}")) for name in VENDORED), _file("page.js")]
    digests = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    # SVG that Vega draws has styles of its own.
    policy = f"default-src 'none'; script-src {digests}; style-src 'unsafe-inline'; img-src data: blob:"
    template = _environment().get_template("page.html.jinja")
    return str(
        template.render(page=page, scripts=scripts, style=_file("page.css"), policy=policy, views=_views(page))
    )


def _views(page: Page) -> list[list[dict[str, Any]]]:
    return [
        [
            {
                "targets": [[_target_key(at), _target_name(at)] for at in clock.by_target],
                "first": clock.opens_on,
            }
            for clock in study.clocks
        ]
        for study in page.studies
    ]


def _target_key(at: Any) -> str:
    return "" if at.target is None else clipped(at.target.short)


def _target_name(at: Any) -> str:
    return "none" if at.target is None else clipped(at.target.text)


def _as_script(module: str) -> str:
    """`module` as a script: it takes from `vega` what it imports, and adds to it what it exports."""
    body, imports = re.subn(_IMPORT, r"const \1 = vega;", module, flags=re.MULTILINE)
    body, exports = re.subn(_EXPORT, r"vega.expressionInterpreter = \1;", body, flags=re.MULTILINE)
    return f"(() => {{\n{body}\n}})();" if imports and exports else module


@functools.cache
def _file(name: str) -> str:
    return (files("istbench.report.output.html") / name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@functools.cache
def _environment() -> Any:
    import jinja2

    def said(value: Any) -> Any:
        """Every text from outside is cut, and one line."""
        return clipped(value, _LONGEST_TEXT) if isinstance(value, str) and not hasattr(value, "__html__") else value

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("istbench.report.output", "html"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=said,
        undefined=jinja2.StrictUndefined,
    )
    environment.policies["json.dumps_kwargs"] = {
        "allow_nan": False, "separators": (",", ":"), "ensure_ascii": False,
    }  # fmt: skip
    environment.filters.update(clip=clipped, read_here=_read_here, sort_key=_sort_key, target_key=_target_key)
    environment.tests.update(shown_note=_is_shown)
    environment.globals.update(
        panels=_panels,
        bars=_bars,
        winners=_winners,
        shapes=SHAPES,
        dashes=DASHES,
        on_dark=on_dark,
        csv_rule={"number": NUMBER, "formula": FORMULA},
    )
    return environment


def _is_shown(line: str) -> bool:
    """Whether a note is a warning, or the meaning of a mark; the others are closed at first."""
    return isinstance(line, Caution) or line.startswith(_MARKS)


def _panels(plot: Plot, before: str = "") -> list[dict[str, Any]]:
    return [
        {"title": before + panel.title, "target": panel.target, "spec": spec}
        for panel, spec in zip(plot.panels, panel_specs(plot), strict=True)
    ]


def _bars(plot: Bars) -> dict[str, Any]:
    return {"title": plot.title, "target": "", "spec": bars_spec(plot)}


def _winners(plot: WinnerMap) -> dict[str, Any]:
    return {
        "title": f"Bandwidth of a host and {plot.row_label}",
        "target": plot.target.short,
        "spec": map_spec(plot),
        "width": map_width(plot),
    }


def _sort_key(entry: Entry) -> str:
    """The value by which a column sorts: the first one of an entry with several; empty if missing."""
    value = entry.value
    if isinstance(value, Mapping):
        value = next(iter(value.values()), None)
    if value is None:
        return ""
    return clipped(str(float(value)) if isinstance(value, bool | int | float) else str(value))


def _read_here(line: str) -> str:
    """`line` of a footer, with the words themselves where it leads to a file of the documentation."""
    return _GUIDES.get(line.partition("#")[2], line) if line.startswith(_BEFORE) else line
