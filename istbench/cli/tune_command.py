"""`istbench tune`: the same number of trials for every method, judged on data held out of the training split."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from istbench.api.cells import begin
from istbench.base.errors import RunFailed, UserError, is_divergence
from istbench.base.files import is_directory, is_there
from istbench.base.options.defaults import DEFAULT_CLUSTER
from istbench.base.options.numbers import Epochs
from istbench.base.options.run import RunRequest
from istbench.base.options.suite import MOST_CELLS, Tuning, check_cells
from istbench.cli import EXIT_FAILED, say
from istbench.cli.options import (
    PATH,
    SectionedCommand,
    cell_options,
    explain_option,
    json_option,
    kind_of,
    methods_option,
    node_counts,
    option,
    place_options,
    plugin_option,
    results_option,
    run_options,
    take_backend,
    typed_options,
)
from istbench.cluster.profile import ClusterProfile, load_profile
from istbench.launch.backends.backend import Outcome
from istbench.node.registry import own_options

_HELD_OUT = 0.1


@click.command("tune", cls=SectionedCommand)
@methods_option
@option("--workload", "Workload to train; see `istbench list workloads`.", required=True)
@option("--nodes", "Numbers of nodes, separated by commas.", default="2")
@option(
    "--trials",
    "Trials of each method on each number of nodes. The first has the defaults of the workload.",
    click.IntRange(1, MOST_CELLS),
    default=20,
)
@option(
    "--range",
    "Range of a method option, in place of the method's own. May be repeated.",
    name="ranges",
    multiple=True,
    metavar="NAME=LOW:HIGH",
)
@run_options("seed")
@cell_options(without=["tuned"])
@option(
    "--cluster",
    f"With --target: judge by replayed seconds to it on this cluster.  [default: {DEFAULT_CLUSTER}]",
    metavar="NAME|FILE.toml",
)
@option(
    "--write",
    "Write the best options of every method as a suite for `istbench compare`.",
    PATH,
    metavar="FILE.toml",
)
@option("--seeds", "Seeds of each row in the written suite.", click.IntRange(1, MOST_CELLS), default=3)
@option(
    "--suite-epochs",
    "Epochs of each row in the written suite. Default: the length of a trial.",
    kind_of(Epochs, "float"),
)
@results_option("results/tuning")
@plugin_option
@explain_option
@place_options
@option("--again", "Delete the trials and run them again.", bool)
@json_option
def command(
    methods: list[str],
    trials: int,
    ranges: tuple[str, ...],
    cluster: str | None,
    write: Path | None,
    seeds: int,
    suite_epochs: float | None,
    out: Path,
    explain: bool,
    again: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Tune the options of several methods by equally many trials.

    \b
    istbench tune --workload speech --methods ist,ddp --nodes 2 --epochs 2 --write tuned.toml
    istbench tune --workload speech --trials 30 --range lr=0.001:0.1 --target 0.77

    Each trial trains one cell with options from the methods' ranges. A share of the training data judges it
    (--held-out, by default 0.1). The test split stays unread.

    Every trial stays in --out as an ordinary cell. The same command again resumes. More --trials add to the trials
    that are there.
    """
    command_words = shlex.join(["istbench", *sys.argv[1:]])
    backend = take_backend(given)
    names = list(dict.fromkeys(methods))
    counts = node_counts(given.pop("nodes"))
    check_cells(len(counts) * trials * len(names), "the command", fewer="trials")
    if write is not None and (is_directory(write) or not write.name):
        raise UserError(f"--write {write} is a directory; name a file, such as tuned.toml")
    if write is not None and is_there(write) and not write.is_file():
        raise UserError(f"--write {write} is no ordinary file; name another, such as tuned.toml")
    for name in ("seeds", "suite_epochs"):
        if write is None and name in typed_options():
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"{flag} is of the written suite; add --write FILE.toml, or leave it out")
    profile = _profile(cluster, given["target"])
    plugins = given["plugins"]
    options = given.pop("method_options")
    shared = RunRequest(method=names[0], nodes=counts[0], **{**given, "held_out": given["held_out"] or _HELD_OUT})
    from istbench.studies.tuning.ranges import given_ranges

    typed_ranges = given_ranges(ranges)
    begin([msgspec.structs.replace(shared, method=name) for name in names], backend, out)
    from istbench.api.progress import Display
    from istbench.api.replaying import replaying
    from istbench.report.phrases import count_nodes, joined
    from istbench.studies.tuning.plan import plan_trials
    from istbench.studies.tuning.trials import Judge, judge_runs

    judge = Judge(target=shared.target, cluster=profile)
    own = {name: own_options(name, names, options, plugins) for name in names}
    first = msgspec.structs.replace(shared, nodes=counts[0])
    asked = [msgspec.structs.replace(first, method=name, method_options=own[name]) for name in names]
    plan = plan_trials(
        # Fitted, so that group=host is a number of nodes.
        {request.method: backend.fit(request).method_options for request in asked},
        shared,
        typed_ranges,
        nodes=counts,
        trials=trials,
        by_seconds=judge.by_seconds,
    )
    requests = [backend.fit(request) for request in plan.requests(counts, shared)]
    runs, failures, running = [], [], False
    with Display() as display:
        for number, outcome in enumerate(backend.run(requests, out, again, display), start=1):
            display.note(f"[{number}/{len(requests)}] {outcome.cell}: {_ended(outcome)}")
            running = running or outcome.running
            if outcome.failure is not None and not _diverged(outcome):
                failures.append(f"{outcome.cell}: {outcome.failure}")
            elif outcome.run is not None and not outcome.running:
                runs.append(outcome.run)
    for failure in failures:
        say(failure)
    if running or not backend.shows_results:
        return EXIT_FAILED if failures else 0
    with replaying():
        judgement = judge_runs(runs, plan.trials, counts, judge)
    if judgement is None:
        raise RunFailed(f"none of {len(requests)} trials finished; their errors are in {out / 'runs'}")
    for problem in (*judgement.problems, *judgement.unreadable):
        say(problem)
    lost = [f"{own.method} on {count_nodes(own.nodes)}" for own in judgement.contests if own.best is None]
    if write is not None and len(lost) == len(judgement.contests):
        say(f"no trial has a result, so {write} is not written")
        write = None
    unwritten: UserError | None = None
    if write is not None:
        from istbench.studies.tuning.suite_file import rows_of, suite_text, write_suite

        said = judge.words(judgement.metric.name, judgement.header.budget)
        tuning = Tuning(trials=trials, seed=shared.seed, held_out=shared.held_out or _HELD_OUT, judged_by=said)
        rows = rows_of(shared, suite_epochs)
        text = suite_text(judgement.contests, shared.workload, rows, tuning, seeds=seeds, command=command_words)
        try:
            write_suite(write, text)
        except UserError as error:  # the table is still printed
            unwritten, write = error, None
    if write is not None:
        next_one = shlex.join(["istbench", "compare", str(write), *(f"--plugin={path}" for path in shared.plugins)])
        say(f"wrote {write}; `{next_one}` trains the best options")
        if lost:
            say(f"{write} leaves out {joined(lost)}: no trial has a result")
    if as_json:
        from istbench.studies.tuning.table import tuning_record

        click.echo(json.dumps(tuning_record(judgement, judge, plan.ranges, write), allow_nan=False))
    else:
        from istbench.report.output.terminal import print_tables
        from istbench.studies.tuning.table import tuning_answer, tuning_table

        table, answer = tuning_table(judgement, judge, plan.ranges), tuning_answer(judgement, judge)
        print_tables([table], sys.stdout, answers=[answer], explain=explain)
    if unwritten is not None:
        raise unwritten
    return EXIT_FAILED if failures or judgement.unreadable or len(lost) == len(judgement.contests) else 0


def _profile(cluster: str | None, target: float | None) -> ClusterProfile | None:
    """The cluster on which seconds judge. A trial stops at its target, so its last metric says nothing."""
    if target is not None:
        return load_profile(cluster or DEFAULT_CLUSTER)
    if cluster is not None:
        raise UserError("--cluster judges by the seconds to a target; add --target LEVEL, or leave --cluster out")
    return None


def _diverged(outcome: Outcome) -> bool:
    """Whether the loss was no longer a number. Wide ranges have such trials; they are no failure of the tuning."""
    try:
        return outcome.run is not None and outcome.run.exists() and is_divergence(outcome.run.header().error)
    except UserError:  # the header is damaged, as the failure says
        return False


def _ended(outcome: Outcome) -> str:
    from istbench.results.metrics import value_text

    if outcome.failure is not None:
        return f"diverged, {str(outcome.failure).partition(';')[0]}" if _diverged(outcome) else "failed"
    if outcome.running or outcome.run is None:
        return "runs on"
    header = outcome.run.header()
    value = header.result.final.get(header.metric) if header.result is not None else None
    said = "diverged" if value is None else f"{header.metric} {value_text(value)}"
    return f"{header.method_label}: {said}{'' if outcome.fresh else ', done before'}"
