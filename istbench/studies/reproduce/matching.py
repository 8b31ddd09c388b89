"""Pair published figures with our subjects."""

from collections.abc import Iterable, Mapping
from typing import Any

from istbench.base.options.options import option_text
from istbench.report.baseline import same_value
from istbench.studies.reproduce.figures import Published, SpeedUpFigure
from istbench.studies.reproduce.paper import Compared, Difference, Subject


def beside(figure: Published, subject: Subject, names: Mapping[str, str] | None = None) -> bool:
    """Whether `subject` trains the workload of `figure` by its method, with the options that it names.

    names: our names of other systems.
    """
    method = (names or {}).get(figure.method, figure.method)
    return _trains(figure, subject, method, figure.method_options)


def is_over(figure: SpeedUpFigure, subject: Subject) -> bool:
    """Whether `subject` trains by the method that the speed-up `figure` compares with."""
    return _trains(figure, subject, figure.over, figure.over_options)


def _trains(figure: Published, subject: Subject, method: str, options: Mapping[str, Any]) -> bool:
    request = subject.request
    return (
        (request.workload, request.method) == (figure.workload, method)
        and has(request.workload_options, figure.options)
        and has(request.method_options, options)
    )


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


def row_of(figure: Published, subject: Subject, *, aspects: tuple[str, ...] = (), **fields: Any) -> Compared:
    """The row of `figure` beside `subject`, whose other `fields` are those of `Compared`."""
    fields = {"network": network_words(figure), "planned": subject.seeds, **fields}
    return Compared(nodes=subject.request.nodes, aspects=(*aspects, *nodes_differ(figure, subject)), **fields)


def published_notes(figures: Iterable[Published]) -> Iterable[str]:
    """The remarks of published figures, each once."""
    return (f"Published: {note}." for note in dict.fromkeys(figure.note for figure in figures) if note)


def node_differences(pairs: Iterable[tuple[Published, Subject]]) -> Iterable[Difference]:
    """The difference in nodes, if there is one."""
    differing = sorted(
        {(figure.nodes, one.request.nodes) for figure, one in pairs if nodes_differ(figure, one)}, key=str
    )
    if differing:
        words = ", ".join(f"ours {ours} and theirs {theirs}" for theirs, ours in differing)
        yield Difference(aspect="nodes", text=f"numbers of nodes differ: {words}.")
