"""`istbench check`: the conformance tests of a method or workload, also of a plug-in or a task file."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from istbench.base.errors import UserError, printable, printable_lines, unknown_name
from istbench.base.options.task_file import is_task_file, task_name
from istbench.cli import EXIT_FAILED
from istbench.cli.options import option, plugin_option, set_option
from istbench.node.registry import load_workload, names_of, own_modules, plugin_names

if TYPE_CHECKING:
    from istbench.studies.conformance.check import CheckResult


@click.command("check")
@click.argument("name")
@option("--nodes", "Worker processes.", click.IntRange(2, 16), default=3)
@set_option
@plugin_option
def command(name: str, nodes: int, method_options: dict[str, str], plugins: tuple[str, ...]) -> int:
    """Run the conformance tests on method or workload NAME with real processes. Takes less than a minute.

    NAME may be a task file, such as my_task.py. istbench tries its functions, and trains two steps by every method
    on one and two nodes. --nodes is then the number of nodes for the groups of ist.
    """
    if is_task_file(name):
        _refuse_options(name, method_options)
        _import_for_workers(names_of("methods"))
        _refuse_plugin(Path(name))
        from istbench.studies.conformance.check import check_task

        return _show(check_task(Path(name), nodes=nodes, plugins=plugins))
    _import_for_workers([name])
    methods, workloads = names_of("methods", plugins), names_of("workloads", plugins)
    if name not in (*methods, *workloads):
        raise unknown_name("method or workload", name, {*methods, *workloads})
    if name not in methods:
        _refuse_options(name, method_options)
    from istbench.studies.conformance.check import check_method, check_workload

    results = []
    if name in methods:
        results += check_method(name, nodes=nodes, plugins=plugins, options=method_options)
    if name in workloads:
        results += check_workload(name, plugins=plugins)
    return _show(results)


def _import_for_workers(methods: Iterable[str]) -> None:
    """Start the imports of workers that train by `methods`, while this process imports torch too."""
    from istbench.launch.processes.local import preload

    preload(modules=["istbench.studies.conformance.check", *own_modules("methods", methods)])


def _refuse_options(name: str, options: dict[str, str]) -> None:
    if options:
        raise UserError(f"--set gives options of a method, and {printable(name)} is none; leave it out")


def _refuse_plugin(file: Path) -> None:
    """Refuse a file of classes: their names are checked one by one."""
    methods, workloads = plugin_names(file, "methods"), plugin_names(file, "workloads")
    from istbench.workloads.task import TaskWorkload

    # Only a task defines the workload of its file's name by functions.
    is_task = workloads == [task_name(file)] and not methods and issubclass(load_workload(str(file)), TaskWorkload)
    if (names := [*methods, *workloads]) and not is_task:
        raise UserError(f"{printable(str(file))} is a plug-in: istbench check {names[0]} --plugin {file}")


def _show(results: "list[CheckResult]") -> int:
    width = max(len(result.name) for result in results)
    for result in results:
        click.echo(printable_lines(f"{result.outcome:<7} {result.name:<{width}}  {result.detail}"))
    failed, skipped = (sum(result.outcome == outcome for result in results) for outcome in ("failed", "skipped"))
    made = len(results) - skipped
    click.echo(f"{made - failed} of {made} checks hold{f', {skipped} skipped' if skipped else ''}", err=True)
    return EXIT_FAILED if failed else 0
