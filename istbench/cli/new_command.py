"""`istbench new`: a file to begin with."""

from pathlib import Path

import click

from istbench.base.errors import UserError, printable
from istbench.base.options.task_file import is_task_file
from istbench.cli.options import PATH

_TEMPLATE = Path(__file__).with_name("task_template.txt")


@click.group("new")
def command() -> None:
    """Write a file to begin with."""


@command.command("task")
@click.argument("file", type=PATH, metavar="FILE.py")
def task(file: Path) -> None:
    """Write a task file: a model, data and a loss as functions. It runs as it stands.

    Edit the functions, then run `istbench check FILE.py`.
    """
    if not is_task_file(file.name):
        raise UserError(f"{printable(str(file))}: the name of a task file ends in .py")
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(_TEMPLATE.read_text(encoding="utf-8"))
    except FileExistsError:
        raise UserError(f"{printable(str(file))} is there already; choose another name") from None
    except OSError as error:
        raise UserError(f"cannot write {printable(str(file))}: {error.strerror}") from None
    click.echo(printable(f"written: {file}; try it: istbench check {file}"), err=True)
