"""The suite of the winners, in TOML, for `istbench compare`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from istbench.base.decode import encode_own
from istbench.base.errors import printable
from istbench.base.files import write_errors, writing_whole
from istbench.base.options.run import RUN_OPTIONS, RunRequest
from istbench.base.options.suite import Tuning
from istbench.studies.tuning.trials import Contest

# The winners train their whole budget on all training data.
_OF_TRIALS = ("held_out", "target", "tuned")


def suite_text(
    contests: Sequence[Contest], workload: str, shared: RunRequest, tuning: Tuning, *, seeds: int, command: str
) -> str:
    """The suite: a `[[suite]]` for each number of nodes, with the best options of each method.

    Methods of which some trials have no result have one of their own, with the number of the others.

    Args:
        workload: as typed. shared: a request with the fields of all rows.
        seeds: of each row. command: of the tuning, for the first line.
    """
    lines = [f"# Written by `{printable(command)}`."]
    won = [contest for contest in contests if contest.best]
    for nodes, trials in dict.fromkeys((contest.nodes, contest.counted) for contest in won):
        methods = [
            {"method": own.method, **own.best.trial.typed_options}
            for own in won
            if (own.nodes, own.counted) == (nodes, trials) and own.best
        ]
        lines += ["", "[[suite]]", f"workload = {_value(workload)}", "methods = ["]
        lines += [f"    {_inline(method)}," for method in methods]
        lines += ["]", f"nodes = [{nodes}]", f"seeds = {seeds}"]
        counted = msgspec.structs.replace(tuning, trials=trials)
        lines.append(f"tuning = {_inline(msgspec.to_builtins(counted))}")
        if shared.workload_options:
            lines.append(f"workload_options = {_inline(shared.workload_options)}")
        run = dict(_run_fields(shared))
        if run:
            lines.append(f"run = {_inline(run)}")
    return "\n".join(lines) + "\n"


def rows_of(shared: RunRequest, epochs: float | None) -> RunRequest:
    """`shared`, a request of the trials, as the rows train it: for `epochs` in place of the budget of a trial."""
    if epochs is None:
        return shared
    return msgspec.structs.replace(shared, steps=None, max_seconds=None, epochs=epochs)


def write_suite(path: Path, text: str) -> None:
    """Write `text` to `path`, whole or not at all.

    Raises:
        UserError: if it cannot be written.
    """
    with write_errors(path, "choose another --write"), writing_whole(path) as file:
        file.write(text.encode())


def _run_fields(shared: RunRequest) -> Iterator[tuple[str, Any]]:
    """The options of a run that the suite names: those that differ from their defaults and define the training."""
    for option in RUN_OPTIONS:
        value = getattr(shared, option.name)
        machine = option.of_machine and option.name != "data"
        if option.in_suites and not machine and option.name not in _OF_TRIALS and value != option.default:
            yield option.name, msgspec.to_builtins(value, enc_hook=encode_own)


def _inline(values: Mapping[str, Any]) -> str:
    return "{ " + ", ".join(f"{name} = {_value(value)}" for name, value in values.items()) + " }"


def _value(value: Any) -> str:
    """A TOML value. Texts of JSON, its numbers and its lists are TOML too."""
    return json.dumps(value, ensure_ascii=False, default=str)
