"""Advice: the method to use for a workload on some nodes, with its odds; for Python and for `istbench advise`."""

import html
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from istbench.api.arguments import from_python, in_python
from istbench.api.cells import checked, named, texts
from istbench.api.progress import Display
from istbench.api.replaying import replaying
from istbench.base.decode import convert
from istbench.base.errors import UserError
from istbench.base.options.defaults import BASELINE
from istbench.base.options.numbers import Minutes, MostSeeds
from istbench.base.options.run import RunRequest
from istbench.base.units import number_or, parse_bandwidth, parse_time
from istbench.cluster.profile import THIS, select_clusters
from istbench.launch.backends.here import Here
from istbench.node.registry import check_name, names_of, own_options
from istbench.studies.advise.advice_text import advice_text
from istbench.studies.advise.question import Question, check_given

if TYPE_CHECKING:
    import pandas as pd

    from istbench.api.task import Task
    from istbench.launch.backends.backend import Screen
    from istbench.studies.advise.answer import Advice
    from istbench.studies.advise.question import Probed

_MINUTE_S = 60.0
_OPTIONS = (
    "target", "batch_size", "data", "device", "amp", "channels_last", "compile", "threads", "timeout_s", "anyway",
)  # fmt: skip
# The last seconds belong to the replays of the answer: a part of the time, within these bounds.
_ANSWER_SHARE, _ANSWER_LEAST_S, _ANSWER_MOST_S = 0.04, 3.0, 20.0


@dataclass(frozen=True, kw_only=True)
class Advised:
    """The advice on one question. A notebook shows its words."""

    advice: "Advice"

    def answer(self) -> str:
        """The first line: the method, its odds, the seconds, the target."""
        return str(self).partition("\n")[0]

    @property
    def choices(self) -> "pd.DataFrame":
        """A row for each candidate, the best first: its options, odds, and seconds to the target."""
        import pandas as pd

        return pd.DataFrame([msgspec.to_builtins(choice) for choice in self.advice.choices])

    def __str__(self) -> str:
        return advice_text(self.advice)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


@from_python
def advise(
    workload: "str | Path | Task",
    nodes: int,
    *,
    bandwidth: float | str | None = None,
    latency: float | str | None = None,
    cluster: str | None = None,
    minutes: float = 10.0,
    methods: str | Sequence[str] = (),
    seeds: int = 5,
    out: str | Path = "results",
    restarts: int = 1,
    quiet: bool = False,
    method_options: Mapping[str, Any] | None = None,
    workload_options: Mapping[str, Any] | None = None,
    plugins: Sequence[str | Path] = (),
    **options: Any,
) -> Advised:
    """Recommend a method for `workload` on `nodes` nodes, with its odds, as `istbench advise` does.

    Args:
        bandwidth: Of the link of a node, in bits/s or a text such as `1gbit`.
        latency: From node to node, one way, in seconds or a text such as `5ms`.
        cluster: A profile of other nodes than this machine.
        minutes: Until the answer.
        methods: To choose from, beside `ddp`.
        seeds: At most so many of a method.
        out: The results directory.
        options: Those of a run that `istbench advise` has; `target=0.77` asks for that level.

    Raises:
        UserError: for a wrong name or option, or bad data. RunFailed: if no probe trains.
    """
    started = time.monotonic()
    question = question_of(
        workload=named(workload),
        nodes=nodes,
        bandwidth=None if bandwidth is None else number_or(parse_bandwidth, bandwidth, "bandwidth"),
        latency=None if latency is None else number_or(parse_time, latency, "latency"),
        cluster=cluster,
        methods=texts(methods),
        seeds=convert(seeds, MostSeeds, lambda _: "seeds"),
        method_options=method_options or {},
        workload_options=dict(workload_options or {}),
        plugins=texts(plugins),
        **checked(options, _OPTIONS),
    )
    minutes = convert(minutes, Minutes, lambda _: "minutes")
    with Display(quiet=quiet, words=in_python) as display:
        _, advice = advised(question, Path(out), display, minutes=minutes, started=started, restarts=restarts)
    return Advised(advice=advice)


def question_of(
    *,
    bandwidth: float | None,
    latency: float | None,
    cluster: str | None,
    methods: Sequence[str],
    seeds: int,
    method_options: Mapping[str, Any],
    **given: Any,
) -> Question:
    """The question as typed. Everything that is wrong without data is refused here."""
    cluster = None if cluster == THIS else cluster
    if bandwidth is None and cluster is None:
        raise UserError("advise needs the network: give --bandwidth 1gbit, or --cluster NAME|FILE.toml")
    profile = None
    if cluster is not None:
        links = [] if bandwidth is None else [bandwidth], [] if latency is None else [latency]
        ((profile,),) = select_clusters([cluster], *links).values()
    base = RunRequest(method=BASELINE, **given)
    chosen = dict.fromkeys([BASELINE, *(methods or names_of("methods", base.plugins))])
    check_name("workloads", base.workload, base.plugins)
    for method in chosen:
        check_name("methods", method, base.plugins)
    question = Question(
        base=base,
        methods=tuple(chosen),
        given={method: own_options(method, list(chosen), method_options, base.plugins) for method in chosen},
        cluster=profile,
        bandwidth=bandwidth,
        latency_s=latency,
        seeds=seeds,
    )
    check_given(question)
    return question


def advised(
    question: Question, out: Path, display: "Screen", *, minutes: float, started: float, restarts: int
) -> "tuple[Probed, Advice]":
    """Probe and answer `question` in `minutes` since `started`, a monotonic time; keep the advice in `out`."""
    from istbench.results.on_cluster import own_checks
    from istbench.studies.advise.advice_file import save_advice
    from istbench.studies.advise.answer import advise
    from istbench.studies.advise.probe import probe

    seconds = minutes * _MINUTE_S
    answer_s = min(_ANSWER_MOST_S, max(_ANSWER_LEAST_S, _ANSWER_SHARE * seconds))
    backend = Here(restarts=restarts)
    backend.begin([question.base], out)
    probed = probe(
        question,
        backend,
        out,
        display,
        seconds=seconds,
        answer_s=answer_s,
        started=started,
        replaying=replaying,
    )
    checks, unreadable = own_checks(out)
    for problem in unreadable:
        display.note(problem)
    with replaying():
        advice = advise(
            probed.candidates,
            probed.profile,
            workload=question.base.workload,
            nodes=question.base.nodes,
            metric=probed.metric,
            target=probed.target,
            target_from=probed.target_from,
            early=probed.early,
            not_tested=probed.not_tested,
            checks=checks,
        )
    advice = probed.with_steps(advice)
    display.note(f"advice saved in {save_advice(advice, out)}")
    return probed, advice
