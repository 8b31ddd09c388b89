"""Measurements after an advice: candidates trained to the target on really shaped links, or on the user's hosts."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from istbench.base.decode import decode_json, read_bytes
from istbench.base.errors import RunFailed
from istbench.base.files import append_line, is_there, write_errors
from istbench.base.machine import cores
from istbench.launch.backends.backend import Backend, Screen
from istbench.launch.backends.here import Here
from istbench.results.load import load_run
from istbench.studies.advise.advice_file import MeasuredAdvice
from istbench.studies.advise.answer import Advice, RankedChoice
from istbench.studies.advise.question import Probed

_MOST_BYTES = 2**28
LOG = "advice.jsonl"
_WHAT = f"the {LOG} of `istbench advise --measure`"


@dataclass(frozen=True, kw_only=True)
class MeasuredCandidate:
    """The measured time of one candidate.

    seconds: train seconds to the target; None for a miss. failure: the error of a failed run; else empty.
    """

    label: str
    seconds: float | None
    failure: str = ""

    def __str__(self) -> str:
        if self.failure:
            return f"{self.label}: failed, {self.failure}"
        return f"{self.label}: {'did not reach the target' if self.seconds is None else f'{self.seconds:.4g} s'}"


def first_two(advice: Advice) -> list[RankedChoice]:
    """The two likeliest candidates that should reach the target."""
    return [choice for choice in advice.choices if not choice.why_not and choice.steps is not None][:2]


def measure(
    choices: Iterable[RankedChoice], probed: Probed, backend: Backend, out: Path, screen: Screen
) -> Iterator[MeasuredCandidate]:
    """Train `choices` to the target with `backend`, one after another; yields the result of each as it ends.

    Finished runs in `out` are not run again. A run that fails does not stop the others. A run that goes on after
    this command has no truth yet.

    Raises:
        UserError: if the backend cannot run them.
        RunFailed: if no cell can run there.
    """
    for choice in choices:
        request, place = probed.request(choice), backend
        if choice.nodes == 1 and isinstance(backend, Here):  # a lab has links, and one node needs none
            threads = request.threads or max(1, cores() // probed.question.base.nodes)
            request, place = msgspec.structs.replace(request, threads=threads), Here(restarts=backend.restarts)
        (outcome,) = place.run([place.fit(request)], out, False, screen)
        if outcome.running:
            screen.note(f"{choice.label} runs on; the same command measures it later")
            continue
        try:
            there = load_run(outcome.finished()).reached(probed.target)
        except RunFailed as error:
            found = MeasuredCandidate(label=choice.label, seconds=None, failure=str(error).splitlines()[0])
        else:
            found = MeasuredCandidate(label=choice.label, seconds=None if there is None else there.seconds)
        screen.note(f"measured {found}")
        yield found


def keep(out: Path, advice: Advice, truth: Mapping[str, float | None]) -> Path:
    """Append the advice and its truth to `advice.jsonl` in `out`, unless a command before wrote the same line.

    Raises:
        UserError: if it cannot be written, is no regular file, or would grow beyond what `read_checked` reads.
    """
    path, line = out / LOG, msgspec.json.encode(MeasuredAdvice(advice=advice, truth=dict(truth)))
    with write_errors(path):
        earlier = read_bytes(path, _WHAT, _MOST_BYTES - len(line) - 1) if is_there(path) else b""
        if line not in earlier.split(b"\n"):
            append_line(path, line)
    return path


def read_checked(path: Path) -> list[MeasuredAdvice]:
    """The lines of `advice.jsonl`.

    Raises:
        UserError: naming a line that holds no advice.
    """
    lines = read_bytes(path, _WHAT, _MOST_BYTES).split(b"\n")[:-1]
    return [
        decode_json(line, MeasuredAdvice, f"{path}, line {number}", "delete the line")
        for number, line in enumerate(lines, start=1)
    ]
