"""`istbench data`: prepare the data of a workload before the first run."""

from pathlib import Path

import click

from istbench.base.errors import UserError, printable, unknown_name
from istbench.cli.options import PATH, option, plugin_option, workload_set_option
from istbench.node.registry import build_workload, check_name


@click.command("data")
@click.argument("workload")
@option("--source", "Source of the data. Default: the first available one.")
@option(
    "--data",
    "Directory with your own data: istbench checks and prepares it now, not in the first run.",
    PATH,
    metavar="DIR",
)
@workload_set_option()
@plugin_option
def command(
    workload: str, source: str | None, data: Path | None, workload_options: dict[str, str], plugins: tuple[str, ...]
) -> None:
    """Prepare the data of a workload before the first run."""
    if source is not None and data is not None:
        raise UserError("--source and --data both name a source; give one of them")
    check_name("workloads", workload, plugins)
    from istbench.api.progress import Display
    from istbench.base.cache import cache_directory
    from istbench.workloads.contract import checked_source

    built = build_workload(workload, workload_options, plugins)
    sources = built.sources
    if not sources and data is None:
        raise UserError(f"workload {workload!r} has no data to download: it makes its own, or reads --data DIR")
    if source is not None and source not in sources:
        raise unknown_name("source", source, sources, f"of {workload}")
    with Display() as display:
        if data is None:
            fetched = built.fetch(source or sources[0], cache_directory(), display.preparing)
            made = checked_source(built, fetched, "fetch")
        else:
            made = checked_source(built, built.prepare(data, cache_directory(), display.preparing))
        display.note(made.note)
    click.echo(printable(f"{made.kind}: {made.train} training and {made.test} test samples in {made.path}"))
