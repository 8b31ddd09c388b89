"""The truth after an advice: candidates trained to the target on really shaped links, or on the user's hosts."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from istbench.advise.answer import Advice, Choice
from istbench.advise.question import Probed, enough_steps
from istbench.advise.truth import Checked
from istbench.backends.backend import Backend, Screen
from istbench.door import decode_json, read_bytes
from istbench.errors import UserError
from istbench.results.load import load_run

_MOST_BYTES = 2**28
LOG = "advice.jsonl"


def first_two(advice: Advice) -> list[Choice]:
    """The two likeliest candidates that should reach the target."""
    return [choice for choice in advice.choices if not choice.why_not and choice.steps is not None][:2]


def measure(
    choices: Iterable[Choice], probed: Probed, backend: Backend, out: Path, screen: Screen
) -> dict[str, float | None]:
    """Train `choices` to the target with `backend`; returns train seconds by label, None for a miss.

    Finished runs in `out` are not run again.

    Raises:
        UserError: if the backend cannot run them.
        RunFailed: if a run fails.
    """
    truth: dict[str, float | None] = {}
    target = probed.target
    assert target is not None
    for choice in choices:
        request = backend.fit(probed.request(choice.label, enough_steps(choice)))
        (outcome,) = backend.run([request], out, False, screen)
        there = load_run(outcome.finished()).reached(target)
        truth[choice.label] = None if there is None else there.seconds
        took = "did not reach the target" if there is None else f"{there.seconds:.4g} s"
        screen.note(f"measured {choice.label}: {took}")
    return truth


def keep(out: Path, advice: Advice, truth: dict[str, float | None]) -> Path:
    """Append the advice and its truth to `advice.jsonl` in `out`.

    Raises:
        UserError: if it cannot be written.
    """
    path = out / LOG
    try:
        with path.open("ab") as file:
            file.write(msgspec.json.encode(Checked(advice=advice, truth=truth)) + b"\n")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another --out") from None
    return path


def read_checked(path: Path) -> list[Checked]:
    """The lines of `advice.jsonl`.

    Raises:
        UserError: naming a line that holds no advice.
    """
    lines = read_bytes(path, f"the {LOG} of `istbench advise --measure`", _MOST_BYTES).split(b"\n")[:-1]
    return [
        decode_json(line, Checked, f"{path}, line {number}", "delete the line")
        for number, line in enumerate(lines, start=1)
    ]
