"""Pair published figures with our subjects."""

from collections.abc import Mapping
from typing import Any

from istbench.base.options.options import option_text
from istbench.report.baseline import same_value
from istbench.studies.reproduce.figures import Figure, SpeedUpFigure
from istbench.studies.reproduce.paper import Subject

Published = Figure | SpeedUpFigure


def is_of(figure: Published, subject: Subject) -> bool:
    """Whether `subject` trains the workload of `figure` with the options that it names."""
    return figure.workload == subject.request.workload and has(subject.request.workload_options, figure.options)


def is_like(figure: Figure, subject: Subject, names: Mapping[str, str] | None = None) -> bool:
    """Whether `subject` has the method and the options of `figure`. names: our names of other systems."""
    method = (names or {}).get(figure.method, figure.method)
    return subject.request.method == method and has(subject.request.method_options, figure.method_options)


def has(options: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether `options` have the values of `wanted`, texts or values of their type."""
    return all(
        name in options and (options[name] == value or same_value(options[name], option_text(value)))
        for name, value in wanted.items()
    )


def network_words(figure: Published) -> str:
    """The options of the workload that `figure` names."""
    return " ".join(f"{name}={value}" for name, value in figure.options.items())


def nodes_differ(figure: Published, subject: Subject) -> tuple[str, ...]:
    """The word `nodes`, if `subject` has other nodes than `figure`."""
    return ("nodes",) if figure.nodes not in (None, subject.request.nodes) else ()
