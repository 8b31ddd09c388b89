"""Print the tables of a report to a terminal, below its answers."""

import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

from istbench.base.errors import printable
from istbench.report.phrases import Caution, Lead, joined
from istbench.report.tables.table import Table

if TYPE_CHECKING:
    from rich.table import Table as Drawing

_GAP = 2
_WIDEST_KEY, _WIDEST = 32, 100


def wrapped(text: str) -> str:
    """`text` in the width of the terminal, at most 100 characters, with escaped control characters.

    The rest of a line is indented. Lines that begin with `istbench ` stay whole: they are commands to copy. Output
    that is no terminal has 100 characters too, as tables have there.
    """
    width = _width()
    lines = []
    for line in text.splitlines():
        shown = printable(line)
        if len(shown) <= width or shown.startswith("istbench "):
            lines.append(shown)
            continue
        own = " " * (len(shown) - len(shown.lstrip()))
        lines += textwrap.wrap(
            shown, width, subsequent_indent=f"{own}  ", break_long_words=False, break_on_hyphens=False
        )
    return "\n".join(lines)


def print_table(table: Table, stream: TextIO, *, width: int | None = None, explain: bool = True) -> None:
    """Print `table` alone, as `print_tables` does."""
    print_tables([table], stream, width=width, explain=explain)


def print_tables(
    tables: Sequence[Table],
    stream: TextIO,
    *,
    answers: Sequence[str] = (),
    width: int | None = None,
    explain: bool = True,
    brief: bool = False,
    hidden: int = 0,
) -> None:
    """Print `answers`, then `tables`, in `width` characters: by default those of the terminal, at most 100.

    A table that is too wide loses the columns of the highest rank. If it still is, it is printed in several blocks
    of columns, each with the columns that name the row. A line below several tables is printed once, after the
    last.

    explain: print whole footers, not only the lines that lead them or warn. brief: unless `explain`, print of a
    footer only the data. hidden: number of further tables.
    """
    from rich.console import Console
    from rich.text import Text

    width = width or _width()
    # Text for a program, as in a notebook, has no colours, whatever the environment says of terminals.
    colours = None if stream in (sys.stdout, sys.stderr) else False
    console = Console(
        file=stream, width=width, highlight=False, markup=False, force_jupyter=False, force_terminal=colours
    )

    def show(lines: Iterable[str], style: str) -> None:
        for line in lines:
            console.print(Text(printable(line), style=style))

    counts = Counter(line for table in tables for line in dict.fromkeys(table.footer) if line not in answers)
    unsaid = [] if explain else [line for line in counts if not _leads(line, brief)]
    if len(unsaid) < 2:  # the line that counts them would take as much room
        unsaid = []
    left_out = list[str]()
    if answers:
        show([*answers, ""], "bold")
    for table in tables:
        least = _least_widths(table)
        kept = _fitting(table, least, width)
        left_out += [column.title for place, column in enumerate(table.columns) if place not in kept]
        show([table.title], "bold")
        if table.rows:
            for block in _blocks(table, kept, least, width):
                console.print(_drawn(table, block, least, width))
                console.print()
        else:
            show([table.empty], "")
        own = [line for line in table.footer if counts[line] == 1 and line not in unsaid]
        show(own if len(tables) == 1 or not own else [*own, ""], "dim")
    show((line for line, count in counts.items() if count > 1 and line not in unsaid), "dim")
    show(_more(len(unsaid), hidden, left_out), "dim")
    console.print()


def _leads(line: str, brief: bool) -> bool:
    return line.startswith("Data: ") if brief else isinstance(line, Lead | Caution)


def _width() -> int:
    return min(shutil.get_terminal_size((_WIDEST, 24)).columns, _WIDEST)


def _drawn(table: Table, block: Sequence[int], least: Sequence[int], width: int) -> "Drawing":
    """The columns of a block, each as wide as it needs at `least`, plus room for its title if there is any."""
    from rich.table import Table as Drawing
    from rich.text import Text

    columns, widths = [table.columns[index] for index in block], [least[index] for index in block]
    room = width - sum(widths) - _GAP * (len(widths) - 1)
    for place, column in enumerate(columns):
        more = max(0, min(room, len(column.title) - widths[place]))
        widths[place] += more
        room -= more
    titled = any(column.title for column in columns)
    drawn = Drawing(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), show_header=titled)
    for column, characters in zip(columns, widths, strict=True):
        drawn.add_column(Text(printable(column.title)), justify=column.align, overflow="fold", width=characters)
    if titled:
        drawn.add_row(*("─" * characters for characters in widths))
    for row in table.rows:
        drawn.add_row(*(Text(printable(row[index].text)) for index in block))
    return drawn


def _more(lines: int, tables: int, columns: Sequence[str]) -> Iterable[str]:
    """A line about all that is not printed, with the options that print it."""
    said = [f"{lines} more lines: --explain"] if lines else []
    if tables:
        wide = f", with {joined(dict.fromkeys(columns))}" if columns else ""
        said.append(f"{tables} more table{'s' * (tables > 1)}{wide}: --all")
    if said:
        yield f"{'. '.join(said)}."


def _fitting(table: Table, least: Sequence[int], width: int) -> list[int]:
    """The columns of `table` without those of the highest rank that do not fit in `width`."""
    kept = list(range(len(table.columns)))
    while sum(least[index] + _GAP for index in kept) - _GAP > width:
        last = max(kept, key=lambda index: table.columns[index].rank)
        if table.columns[last].rank == 0:
            break
        kept.remove(last)
    return kept


def _blocks(table: Table, kept: Sequence[int], least: Sequence[int], width: int) -> list[list[int]]:
    """The columns of each block of at most `width` characters. Every block starts with the naming columns."""
    keys, others = list(kept[: table.keys]), kept[table.keys :]
    used_by_keys = sum(least[index] + _GAP for index in keys)
    blocks, used = [keys[:]], used_by_keys
    for index in others:
        if used + least[index] > width and len(blocks[-1]) > len(keys):
            blocks.append(keys[:])
            used = used_by_keys
        blocks[-1].append(index)
        used += least[index] + _GAP
    return blocks


def _least_widths(table: Table) -> list[int]:
    """Characters that each column needs for its longest text (folded in naming columns) or title word."""
    least = []
    for index, column in enumerate(table.columns):
        words = [len(word) for word in column.title.split()]
        texts = [len(row[index].text) for row in table.rows]
        needed = max(texts, default=1)
        least.append(max([1, min(needed, _WIDEST_KEY) if index < table.keys else needed, *words]))
    return least
