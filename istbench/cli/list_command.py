"""`istbench list`: what there is to choose from."""

import dataclasses
from pathlib import Path

import click

from istbench.cli.options import plugin_option
from istbench.registry import Kind, entries, load_method, load_workload, plugin_names


@click.command("list")
@click.argument("kind", type=click.Choice(["methods", "workloads"]))
@click.option("--options", "with_options", is_flag=True, help="Their options, with defaults, as well.")
@plugin_option
def command(kind: Kind, with_options: bool, plugins: tuple[str, ...]) -> None:
    """List methods or workloads."""
    known = entries(kind)
    local = [name for path in plugins for name in plugin_names(Path(path), kind)]
    width = max(len(name) for name in [*(entry.name for entry in known), *local])
    for entry in known:
        origin = "" if entry.package == "istbench" else f"  [{entry.package}]"
        click.echo(f"{entry.name:<{width}}  {entry.summary}{origin}")
        if with_options:
            _print_options(kind, entry.name, plugins)
    for name in local:
        click.echo(f"{name:<{width}}  [plug-in]")
        if with_options:
            _print_options(kind, name, plugins)


def _print_options(kind: Kind, name: str, plugins: tuple[str, ...]) -> None:
    loaded = load_method(name, plugins) if kind == "methods" else load_workload(name, plugins)
    defaults = loaded.Options()
    for field in dataclasses.fields(loaded.Options):
        text = field.metadata.get("help", "")
        click.echo(f"    {field.name}={getattr(defaults, field.name)}  {text}")
