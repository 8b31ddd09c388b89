"""The command line. Each command is a file of its own, imported only when it is called."""

import importlib
import itertools
import os
import sys
from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem

from istbench import __version__
from istbench.base.error_lines import error_line, show_traceback
from istbench.base.errors import RunFailed, UserError, printable, printable_lines, unknown_name
from istbench.base.interrupts import EXIT_INTERRUPTED, INTERRUPTED
from istbench.cli.streams import Streams
from istbench.launch.hosts import run_folder
from istbench.launch.processes.failures import WorkerLost

COMMANDS = {
    "advise": "Recommend a method for a workload and a network, with its odds, in ten minutes.",
    "check": "Run the conformance tests on a method, a workload or a task file.",
    "compare": "Train many cells and compare their time to accuracy.",
    "data": "Prepare the data of a workload before the first run.",
    "doctor": "List what works on this machine, and how to repair the rest.",
    "engine": "Write the file with which SkyPilot, Kubeflow or Slurm runs a command.",
    "estimate": "Estimate the seconds of a step by each method from numbers alone.",
    "export": "Write finished runs for TensorBoard, MLflow, MLPerf's or Chakra's tools.",
    "faults": "Measure what faults cost each method of a suite, beside the simulation.",
    "lab": "Run a command on a shaped network inside this machine, or check replays against one.",
    "list": "List methods, workloads, sinks or clusters.",
    "map": "Show which method is first at each bandwidth and on each number of nodes.",
    "new": "Write a task file: your own model, data and loss as functions.",
    "plan": "Compute memory, bytes and seconds of a cell without running it.",
    "record": "Record the steps of your own training script, for replay, plan and map.",
    "replay": "Compute the time of recorded runs on other clusters.",
    "reproduce": "Train the cells behind a paper's tables, or predict what others measured.",
    "report": "Print tables and draw pictures of the runs in a results directory.",
    "retrace": "Record the seconds of finished runs again, on a machine that is idle now.",
    "run": "Train one cell: a workload, a method and a number of nodes.",
    "timeline": "Draw one round of a run, as a picture and for ui.perfetto.dev.",
    "tune": "Tune the options of several methods by equally many trials.",
}

_COMPLETE = "_ISTBENCH_COMPLETE"
"""The shell's variable: `eval "$(_ISTBENCH_COMPLETE=bash_source istbench)"`."""
# Their lists have commas. Of a list with spaces, the second part would be RESULTS or SUITE.
_WITH_LISTS = ("compare", "faults", "map", "replay", "validate")
_OTHER_WAYS = {
    ("report", "--json"): "write --format json",
    ("replay", "--json"): "write --format json",
    ("plan", "--parameters"): "`istbench estimate` takes numbers without a model",
    ("plan", "--step"): "`istbench estimate` takes numbers without a model",
}
"""By command and option, the way to what its user wants."""

EXIT_FAILED, EXIT_WRONG_USE, EXIT_TARGET_MISSED, EXIT_FAIL_IF = 1, 2, 3, 4


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"istbench.cli.{name}_command")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise unknown_name("command", args[0], COMMANDS)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands and options that begin with `incomplete`; it imports no command."""
        named = [CompletionItem(name, help=what) for name, what in COMMANDS.items() if name.startswith(incomplete)]
        return named + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="istbench")
def cli() -> None:
    """Find the training method that reaches your accuracy first on your network."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point.

    Exits 0 done, 1 run failed, 2 wrong use or bad input, 3 target not reached, 4 --fail-if held, 130 interrupted.
    """
    if _COMPLETE in os.environ:
        cli.main(arguments, prog_name="istbench")  # click writes bytes for the shell, and exits
    with Streams() as streams:
        run_folder.speak_apart()
        status = _run(arguments, streams)
        problem = streams.problem()
        if problem:
            say(problem)
            status = status or EXIT_FAILED
    sys.exit(status)


def _run(arguments: Sequence[str] | None, streams: Streams) -> int:
    """Run the command; returns the exit status, after a message if the status is not 0."""
    try:
        status = cli.main(arguments, prog_name="istbench", standalone_mode=False, obj=streams)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return _end("", 0)
    except (UserError, RunFailed) as error:
        show_traceback(error)
        if isinstance(error, UserError):
            return _end(_lines(error) + _spaced_list(arguments), EXIT_WRONG_USE)
        return _end(_lines(error), EXIT_FAILED, lost=isinstance(error, WorkerLost))
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context else ""
        message = _with_other_way(error) or " ".join(error.format_message().split())  # click has choices in lines
        return _end(printable(f"{message.rstrip('.')}{hint}") + _spaced_list(arguments), EXIT_WRONG_USE)
    except (KeyboardInterrupt, click.Abort) as interrupt:
        if isinstance(interrupt.__cause__, UserError | RunFailed):
            say(_lines(interrupt.__cause__))
        return _end(INTERRUPTED, EXIT_INTERRUPTED)
    except (Exception, SystemExit) as error:
        line = error_line(error)
        if line is None:
            raise
        return _end(line, EXIT_WRONG_USE)
    return _end("", status if isinstance(status, int) else 0)


def _with_other_way(error: click.ClickException) -> str:
    """The message for an option that another option or command stands for; empty for other errors."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return ""
    way = _OTHER_WAYS.get((error.ctx.info_name or "", error.option_name))
    return f"No such option {error.option_name!r}; {way}" if way else ""


def _spaced_list(arguments: Sequence[str] | None) -> str:
    """The end of a message, if a list in `arguments` has spaces in place of commas; empty if none has."""
    words = sys.argv[1:] if arguments is None else arguments
    if any(word in _WITH_LISTS for word in words):
        for place, flag in enumerate(words[:-2]):
            listed = list(itertools.takewhile(lambda word: word[:1].isdecimal(), words[place + 1 :]))
            if flag.startswith("--") and len(listed) > 1:
                return printable(f"; a list has commas: {flag} {','.join(listed)}")
    return ""


def _lines(error: UserError | RunFailed) -> str:
    """The message of `error` for a terminal; that of a failed run may have several lines."""
    return (printable if isinstance(error, UserError) else printable_lines)(str(error))


def _end(message: str, status: int, *, lost: bool = False) -> int:
    """End together with the other processes of torchrun, after `message`; returns the exit status.

    lost: whether the run lost a worker, and may go on.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        message, status = _said_together(message, status)
    if message and not run_folder.report_failure(message, status, lost=lost):
        say(message)
    return status


def say(message: str) -> None:
    """Print `message`, which may quote anything, to standard error."""
    click.echo(f"istbench: {printable_lines(message)}", err=True)


def _said_together(message: str, status: int) -> tuple[str, int]:
    """The message and the exit status of this process, together with the other processes of its torchrun."""
    from istbench.launch.processes.world import this_world
    from istbench.launch.torchrun.meeting import leave

    try:
        world = this_world()
    except UserError:
        return message, status
    return (message, status) if world is None else leave(world, message, status)
