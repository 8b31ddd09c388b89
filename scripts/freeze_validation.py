"""Turn the measurements of `istbench lab validate` into the repository's: its tables, texts and packaged checks.

    python scripts/freeze_validation.py RESULTS

RESULTS/validation holds the measurements. The script adds them to results/validation, where they replace older ones
of the same methods. From all measurements there it writes the tables, pictures and README.md of results/validation,
the paragraph of README.md between its two marks, and istbench/cluster/replay_checks.json. That file tells replayed
tables how far the replays of each method are off, and those at long latencies (results/validation/latency). Without
RESULTS it writes these again from results/validation.

    python scripts/freeze_validation.py --into TARGET    # to try it
"""

import argparse
import re
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

from istbench.base.units import parse_bandwidth, parse_time
from istbench.cluster.replay_checks import Checks, LatencyCheck, checks_of, measurement_files
from istbench.report.output.formats import table_markdown
from istbench.report.phrases import joined
from istbench.studies.validation.record import SCALED, ValidationFiles, read_errors
from istbench.studies.validation.table import ReplayError, error_table, summary_of, summary_table

ROOT = Path(__file__).parent.parent
FROZEN = ROOT / "results" / "validation"
LATENCY = "latency"
CHECKED = ROOT / "istbench" / "cluster" / "replay_checks.json"
BEGIN, END = "<!-- validation: scripts/freeze_validation.py writes these lines -->\n", "<!-- validation: end -->\n"
_DIGITS = 4
_LATE = re.compile(r"-n\d+-latency([^-]+)$")
_PLAIN = re.compile(rf"-n\d+({SCALED})?$")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="?", help="results directory of `lab validate`")
    parser.add_argument("--into", type=Path, help="write into copies of the files in this directory instead")
    arguments = parser.parse_args()
    frozen, packaged, readme = FROZEN, CHECKED, ROOT / "README.md"
    if arguments.into is not None:
        frozen, packaged, readme = (arguments.into / path.name for path in (frozen, packaged, readme))
        shutil.copytree(FROZEN, frozen)
        shutil.copy(ROOT / "README.md", readme)
    if arguments.results is not None:
        add(arguments.results / "validation", frozen)
    ValidationFiles(frozen, scaling=False).write_summary()
    (frozen / "README.md").write_text(page(frozen))
    packaged.write_bytes(checked(frozen))
    readme.write_text(with_paragraph(readme.read_text(), frozen))


def add(measured: Path, frozen: Path) -> None:
    """Add the measurements in `measured` to the files in `frozen`, without those on racks or hosts."""
    for path in measurement_files(measured):
        scaling = path.stem.endswith(SCALED)
        if late := _LATE.search(path.stem):
            files = ValidationFiles(frozen / LATENCY, scaling=scaling, latency_s=parse_time(late[1]))
        elif _PLAIN.search(path.stem):
            files = ValidationFiles(frozen, scaling=scaling)
        else:
            print(f"left out: {path}, of another kind of network")
            continue
        files.write(read_errors(path), finished=True)


def checked(folder: Path) -> bytes:
    """The packaged checks of the measurements in `folder`, as JSON."""
    found = checks_of(errors_in(folder))
    rounded = [
        msgspec.structs.replace(
            check, **{name: round(getattr(check, name), _DIGITS) for name in ("median", "mean", "largest")}
        )
        for _, check in sorted(found.items())
    ]
    checks = Checks(methods=tuple(rounded), latency=latency_check(FROZEN / LATENCY))
    return msgspec.json.format(msgspec.json.encode(checks), indent=1) + b"\n"


def latency_check(folder: Path) -> LatencyCheck:
    """The check by the measurements of `lab validate --latency` in `folder`, named after their latency."""
    points = [
        (parse_time(path.stem.rpartition("latency")[2]), error)
        for path in measurement_files(folder)
        for error in read_errors(path)
    ]
    errors = [error.error for _, error in points]
    latency, worst = max(points, key=lambda point: abs(point[1].error))
    return LatencyCheck(
        least_s=min(latency for latency, _ in points),
        most_s=max(latency for latency, _ in points),
        measurements=len(points),
        median=round(statistics.median(map(abs, errors)), _DIGITS),
        furthest=round(worst.error, _DIGITS),
        where=f"{worst.method}, {worst.nodes} nodes, {worst.bandwidth}, {latency * 1e3:g} ms",
    )


def errors_in(folder: Path) -> list[ReplayError]:
    """All measurements in `folder`."""
    return [error for path in measurement_files(folder) for error in read_errors(path)]


def page(folder: Path) -> str:
    """README.md of `folder`."""
    errors = errors_in(folder)
    network, scaled = ([error for error in errors if bool(error.environment) == there] for there in (False, True))
    parts = [
        "# Replays against measured runs\n",
        "`istbench lab validate` trains on links that `tc` shapes, and replays the trace of the same run.\n",
        "**These are errors of the network's model alone**: a replay has the computing that its run recorded.\n",
        table_markdown(summary_table(network, "Errors by method")),
        f"**Traces from elsewhere.** {elsewhere_words(network)}\n",
        f"**Other computing speeds.** {scaling_words(scaled)}\n",
        *(
            [table_markdown(error_table(scaled, "Errors of replays for other speeds", scaling=True))]
            if scaled
            else []
        ),
        f"**Late packets.** {latency_words(FROZEN / LATENCY)}\n",
        *(f"- [{path.stem}]({LATENCY}/{path.stem}.md)" for path in measurement_files(FROZEN / LATENCY)),
        "",
        "**All tables.** Four or more nodes share two cores.\n",
        *(f"- [{path.stem}]({path.stem}.md)" for path in measurement_files(folder)),
        "",
        *(f"![Errors of replays, {path.stem}]({path.stem}.png)" for path in measurement_files(folder)),
        "",
        "`scripts/freeze_validation.py` writes this page from the measurements.",
    ]
    return "\n".join(parts) + "\n"


def elsewhere_words(errors: Sequence[ReplayError]) -> str:
    """A sentence on replays of traces that another run recorded."""
    summary = summary_of([error.error_recorded_elsewhere for error in errors])
    where = "from another run, recorded on the loopback interface (the speed of the machine changes)"
    return f"Traces {where}:\n  {summary}."


def latency_words(folder: Path) -> str:
    """A sentence on replays at long latencies, measured in `folder`."""
    check, nodes = latency_check(folder), sorted({error.nodes for error in errors_in(folder)})
    return (
        f"On {joined(map(str, nodes))} nodes, {check.least_s * 1e3:g} to {check.most_s * 1e3:g} ms one way, "
        f"{check.measurements} measurements: "
        f"median {check.median:.1%}, largest {check.furthest:+.1%} ({check.where})."
    )


def scaling_words(scaled: Sequence[ReplayError]) -> str:
    """A sentence on replays for other computing speeds."""
    if not scaled:
        return "Replays for other computing speeds are not measured yet (`istbench lab validate --scaling`)."
    errors = summary_of([error.error for error in scaled])
    return f"Replays for other computing speeds, {len(scaled)} measurements: {errors}."


def with_paragraph(text: str, folder: Path) -> str:
    """README.md's `text` with the measurements of `folder` between the marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{paragraph(folder)}{END}{after}"


def paragraph(folder: Path) -> str:
    """The lines of README.md: the errors of all measurements. The page of `folder` has those of each method."""
    errors = [error for error in errors_in(folder) if not error.environment]
    scaled = [error for error in errors_in(folder) if error.environment]
    slow = [error.error for error in errors if parse_bandwidth(error.bandwidth) <= 1e9]
    nodes = sorted({error.nodes for error in errors})
    links = sorted({error.bandwidth for error in errors}, key=parse_bandwidth)
    lines = [
        f"- {len(errors)} measurements of {len({error.method for error in errors})} methods on "
        f"{' and '.join(map(str, nodes))} nodes and links of {links[0]} to {links[-1]}:",
        f"  {summary_of([error.error for error in errors])}.",
        f"- Up to 1 Gbit/s: {summary_of(slow)}.",
        f"- {elsewhere_words(errors)}",
        f"- {scaling_words(scaled)}",
        f"- Trained on {', '.join(sorted({error.data for error in errors}))}.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
