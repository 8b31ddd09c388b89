"""Print a table to a terminal."""

import shutil
from collections.abc import Iterable, Sequence
from typing import TextIO

from istbench.base.errors import printable
from istbench.report.phrases import Caution, Lead
from istbench.report.tables.table import Table

_GAP, _EDGES = 3, 2
_WIDEST_KEY = 32


def print_table(table: Table, stream: TextIO, *, width: int | None = None, explain: bool = True) -> None:
    """Print `table` in `width` characters, by default the width of the terminal.

    A table that is too wide is printed in several blocks of columns. Each block has the columns that name the row.

    explain: print the whole footer, not only the lines that lead it or warn.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table as Drawing
    from rich.text import Text

    width = width or shutil.get_terminal_size((120, 24)).columns
    console = Console(file=stream, width=width, highlight=False, markup=False)
    console.print(Text(printable(table.title), style="bold"))
    for block in _blocks(table, width):
        columns = [table.columns[index] for index in block]
        drawing = Drawing(box=box.SIMPLE_HEAD, pad_edge=False, show_header=any(column.title for column in columns))
        for column, characters in zip(columns, _widths(table, block, width), strict=True):
            drawing.add_column(
                Text(printable(column.title)), justify=column.align, overflow="fold", width=characters
            )
        for row in table.rows:
            drawing.add_row(*(Text(printable(row[index].text)) for index in block))
        if table.rows:
            console.print(drawing)
        else:
            console.print(Text(table.empty))
            break
    for line in table.footer if explain else brief(table.footer):
        console.print(Text(printable(line), style="dim"))
    console.print()


def brief(footer: Sequence[str]) -> list[str]:
    """The lines of `footer` that lead it or warn, and the number of the others."""
    shown = [line for line in footer if isinstance(line, Lead | Caution)]
    more = len(footer) - len(shown)
    if more < 2:  # the line that counts them would take as much room
        return list(footer)
    return [*shown, f"{more} more lines: --explain"]


def _blocks(table: Table, width: int) -> list[list[int]]:
    """The columns of each block of at most `width` characters. Every block starts with the naming columns."""
    widths = _least_widths(table, range(len(table.columns)))
    keys = list(range(table.keys))
    used_by_keys = _EDGES + sum(widths[index] + _GAP for index in keys)
    blocks, used = [keys[:]], used_by_keys
    for index in range(table.keys, len(table.columns)):
        if used + widths[index] > width and len(blocks[-1]) > len(keys):
            blocks.append(keys[:])
            used = used_by_keys
        blocks[-1].append(index)
        used += widths[index] + _GAP
    return blocks


def _widths(table: Table, columns: Sequence[int], width: int) -> list[int]:
    """Width of each column of a block: the least, plus room for its title if there is any."""
    widths = _least_widths(table, columns)
    room = width - _EDGES - sum(widths) - _GAP * (len(widths) - 1)
    for place, index in enumerate(columns):
        more = max(0, min(room, len(table.columns[index].title) - widths[place]))
        widths[place] += more
        room -= more
    return widths


def _least_widths(table: Table, columns: Iterable[int]) -> list[int]:
    """Characters that each column needs for its longest text (folded in naming columns) or title word."""
    least = []
    for index in columns:
        words = [len(word) for word in table.columns[index].title.split()]
        texts = [len(row[index].text) for row in table.rows]
        needed = max(texts, default=1)
        least.append(max([1, min(needed, _WIDEST_KEY) if index < table.keys else needed, *words]))
    return least
