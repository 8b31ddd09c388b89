"""`istbench list`: the methods, workloads, sinks and clusters, and the neuron groups of a workload."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import click

from istbench.base.errors import UserError, printable, printable_lines
from istbench.base.options.options import option_text
from istbench.cli.options import option, plugin_option, workload_set_option
from istbench.cluster.profile import load_profile, summaries
from istbench.node.registry import (
    PluginKind,
    build_method,
    build_workload,
    load_method,
    load_workload,
    plugin_names,
    registered,
)

_Listed = PluginKind | Literal["clusters", "groups"]


@click.command("list")
@click.argument("kind", type=click.Choice(["methods", "workloads", "sinks", "clusters", "groups"]))
@click.argument("workload", required=False)
@option("--options", "Also list their options (for clusters: their figures).", bool, name="with_options")
@workload_set_option("Workload option, with groups.")
@plugin_option
def command(
    kind: _Listed,
    workload: str | None,
    with_options: bool,
    workload_options: dict[str, str],
    plugins: tuple[str, ...],
) -> None:
    """List methods, workloads, sinks or clusters, or the groups of hidden units of a WORKLOAD for `ist`."""
    if kind == "groups":
        if workload is None:
            raise UserError("name a workload: istbench list groups WORKLOAD")
        _print_groups(workload, workload_options, plugins)
        return
    if workload is not None or workload_options:
        given = "--workload-set" if workload is None else workload
        raise UserError(f"leave out {given}: only istbench list groups takes a workload and its options")
    if kind == "clusters":
        _print_clusters(with_options)
        return
    if kind == "sinks" and (with_options or plugins):
        given = "--options" if with_options else "--plugin"
        raise UserError(f"leave out {given}: a sink has no options, and comes from an installed package")
    listed = [
        (entry.name, entry.summary if entry.package == "istbench" else f"{entry.summary}  [{entry.package}]")
        for entry in registered(kind)
    ]
    listed += [(name, "[plug-in]") for path in plugins for name in plugin_names(Path(path), kind)]
    width = max(len(name) for name, _ in listed)
    for name, line in listed:
        click.echo(printable(f"{name:<{width}}  {line}"))
        if with_options:
            _print_options(kind, name, plugins)


def _print_clusters(with_fields: bool) -> None:
    lines = summaries()
    width = max(map(len, lines))
    for name, line in lines.items():
        click.echo(printable(f"{name:<{width}}  {line}"))
        if with_fields:
            for field, value in _figures(dataclasses.asdict(load_profile(name))):
                if field not in ("name", "summary"):
                    click.echo(printable(f"    {field} = {value}"))


def _figures(fields: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", own) for inner, own in value.items())
        else:
            yield name, value


def _print_options(kind: PluginKind, name: str, plugins: tuple[str, ...]) -> None:
    loaded = load_method(name, plugins) if kind == "methods" else load_workload(name, plugins)
    defaults = loaded.Options()
    for field in dataclasses.fields(loaded.Options):
        text = field.metadata.get("help", "")
        click.echo(printable_lines(f"    {field.name}={option_text(getattr(defaults, field.name))}  {text}"))


def _print_groups(name: str, options: dict[str, str], plugins: tuple[str, ...]) -> None:
    from istbench.methods.dealt_groups import is_linear, selected_groups
    from istbench.workloads.contract import blank_model
    from istbench.workloads.neuron_groups.groups import named_tensors

    workload = build_workload(name, options, plugins)
    if workload.sized_by_data:
        workload.expect(None, options)
    model = blank_model(workload, data_known=False)
    groups = workload.neuron_groups(model)
    if not groups:
        raise UserError(f"workload {name!r} declares no neuron groups, so ist cannot deal its units")
    dealt = selected_groups(model, groups, build_method("ist", {}, workload=workload).options.deal)
    by_default = {group.name for group in dealt} if len(dealt) < len(groups) else set()
    tensors = named_tensors(model)
    width = max(len(group.name) for group in groups)
    for group in groups:
        values = sum(tensors[tensor].numel() for tensor in {slot.tensor for slot in group.slots})
        is_so = {
            "late": group.late,
            "linear": is_linear(model, group),
            "scaled": bool(group.sums),
            "default": group.name in by_default,
        }
        words = [word for word, holds in is_so.items() if holds]
        line = f"{group.name:<{width}}  {group.size:>6,} units  {values:>12,} values  {' '.join(words)}"
        click.echo(printable(line.rstrip()))
