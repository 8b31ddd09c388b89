"""`istbench list`: the methods, workloads and clusters."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import click

from istbench.cli.options import plugin_option
from istbench.cluster.profile import load_profile, summaries
from istbench.config.options import option_text
from istbench.registry import Kind, load_method, load_workload, plugin_names, registered


@click.command("list")
@click.argument("kind", type=click.Choice(["methods", "workloads", "clusters"]))
@click.option(
    "--options", "with_options", is_flag=True, help="Also list their options (for clusters: their figures)."
)
@plugin_option
def command(kind: Kind | Literal["clusters"], with_options: bool, plugins: tuple[str, ...]) -> None:
    """List methods, workloads or clusters."""
    if kind == "clusters":
        _print_clusters(with_options)
        return
    known = registered(kind)
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


def _print_clusters(with_fields: bool) -> None:
    lines = summaries()
    width = max(map(len, lines))
    for name, line in lines.items():
        click.echo(f"{name:<{width}}  {line}")
        if with_fields:
            for field, value in _figures(dataclasses.asdict(load_profile(name))):
                if field not in ("name", "summary"):
                    click.echo(f"    {field} = {value}")


def _figures(fields: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", own) for inner, own in value.items())
        else:
            yield name, value


def _print_options(kind: Kind, name: str, plugins: tuple[str, ...]) -> None:
    loaded = load_method(name, plugins) if kind == "methods" else load_workload(name, plugins)
    defaults = loaded.Options()
    for field in dataclasses.fields(loaded.Options):
        text = field.metadata.get("help", "")
        click.echo(f"    {field.name}={option_text(getattr(defaults, field.name))}  {text}")
