"""The share of time that computes by interval and bandwidth, beside the published shares of diloco-measured.

    python scripts/bench/utilisation.py results/grid
    python scripts/bench/utilisation.py TARGET --width 16 --layers 1 --batch-size 2    # to try it

diloco-measured trained 30.8 million parameters on four hosts with a GPU each. This program records steps of a
language model of that size on this machine (`istbench.record`). It replays them by `ddp` and `diloco`. The seconds
of a step there are not published. So one factor scales all computing, such that 128 local steps compute half of the
time at the published bandwidth. The other shares follow. Writes utilisation.md, which
`scripts/bench/grid.py` puts into README.md of the same directory.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional as F

import istbench
from istbench.base.errors import RunFailed, UserError
from istbench.cluster.profile import ClusterProfile, bandwidth_text
from istbench.cluster.script_record import ScriptRecord
from istbench.cluster.trace import Trace
from istbench.plan.script_time import ChosenMethod, alone_trace, script_time
from istbench.plan.script_trace import script_trace
from istbench.studies.reproduce.clocks import crossing
from istbench.studies.validation.measure import as_fast_as
from istbench.workloads.models.transformer import Transformer

PUBLISHED = {  # percent, at 50, 200, 1,000 and 5,000 Mbit/s: Adnan082/diloco-measured 07b7885, results/raw
    1: (0.07, 0.32, 1.74, 7.76),
    8: (0.55, 2.48, 12.35, 40.24),
    32: (2.41, 10.0, 36.0, 68.1),
    128: (11.6, 36.1, 71.5, 87.0),
}
BANDWIDTHS = (50e6, 200e6, 1e9, 5e9)
HALVES = {32: 2.06e9, 128: 394e6}
"""Published bandwidths in bit/s at which half of the time computes, by local steps."""
FITTED = 128
NODES = 4
SYMBOLS = 65

Share = Callable[[int, float, float], float]
"""The share that computes, by local steps, bandwidth in bit/s, and the factor of the computing speed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--width", type=int, default=800)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=4, help="windows in a step")
    parser.add_argument("--steps", type=int, default=8, help="to record")
    arguments = parser.parse_args()
    try:
        record, parameters = recorded(arguments)
    except (UserError, RunFailed) as error:
        parser.error(str(error))
    share = replayed_share(record)
    speed = crossing(lambda factor: share(FITTED, HALVES[FITTED], factor) - 0.5, 1e-3, 1e6)
    lines = [
        f"### Share of the time that computes: {parameters / 1e6:.1f} million parameters, {NODES} nodes\n",
        "Published: diloco-measured, four hosts with a GPU each. Ours: recorded steps, replayed by `ddp` (every "
        "step) and `diloco`.",
        f"One factor fits all computing: {FITTED} local steps compute half of the time at "
        f"{bandwidth_text(HALVES[FITTED])}. A step then takes {1e3 * alone_s(record, speed):.1f} ms.\n",
        *table(share, speed),
        "",
        *(
            f"- Half computes with {every} local steps at {bandwidth_text(half(share, every, speed), 3)}; "
            f"published {bandwidth_text(bits)}{', which the factor fits' if every == FITTED else ''}."
            for every, bits in sorted(HALVES.items())
        ),
        f"- With this machine's own step of {alone_s(record, 1.0):.3g} s, half of the time computes at "
        + " and ".join(
            f"{bandwidth_text(half(share, every, 1.0), 3)} with {every} local steps" for every in sorted(HALVES)
        )
        + ".",
        "- `scripts/bench/utilisation.py` writes these lines.",
    ]
    text = "\n".join(lines) + "\n"
    arguments.target.mkdir(parents=True, exist_ok=True)
    (arguments.target / "utilisation.md").write_text(text)
    print(text)


def recorded(arguments: argparse.Namespace) -> tuple[ScriptRecord, int]:
    """Recorded steps of the model on random symbols, and the number of its parameters."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Transformer(
        SYMBOLS, width=arguments.width, layers=arguments.layers, heads=arguments.heads, context=arguments.context
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4)
    sizes = (arguments.batch_size, arguments.context)
    with (
        tempfile.TemporaryDirectory(prefix="istbench-") as folder,
        istbench.record(optimizer, file=Path(folder) / "record.json", steps=arguments.steps) as block,
    ):
        for _ in range(2 * arguments.steps):
            symbols = torch.randint(SYMBOLS, sizes)
            optimizer.zero_grad()
            F.cross_entropy(model(symbols).flatten(0, 1), symbols.flatten()).backward()
            optimizer.step()
    assert block.record is not None
    return block.record, sum(parameter.numel() for parameter in model.parameters())


def replayed_share(record: ScriptRecord) -> Share:
    """The share that computes in replays of `record`."""
    methods = {
        every: ChosenMethod(name="diloco", options={"local_steps": every})
        if every > 1
        else ChosenMethod(name="ddp", options={})
        for every in PUBLISHED
    }
    traces: dict[int, Trace] = {every: script_trace(record, method, NODES) for every, method in methods.items()}

    def share(every: int, bits: float, speed: float) -> float:
        profile = profile_of(record, bits, speed)
        return script_time(record, methods[every], traces[every], profile).time.compute

    return share


def profile_of(record: ScriptRecord, bits: float, speed: float) -> ClusterProfile:
    """A cluster of machines `speed` times as fast as the recording one."""
    links = ClusterProfile(
        name="links", summary="", gflops=1.0, source="", memory_gib=1e3, bandwidth_out=bits, bandwidth_in=bits,
        latency_s=0.0, overhead_s=0.0, full_duplex=True, price_per_hour=0.0, price_date="", price_source="",
        cores=1.0,
    )  # fmt: skip
    return as_fast_as(links, alone_trace(record), speed)


def alone_s(record: ScriptRecord, speed: float) -> float:
    """Seconds of a step of one node alone."""
    return record.step_s / speed


def half(share: Share, every: int, speed: float) -> float:
    """The bandwidth in bit/s at which half of the time computes."""
    return crossing(lambda bits: 0.5 - share(every, bits, speed), 1e3, 1e15)


def table(share: Share, speed: float) -> list[str]:
    """Published and replayed percent, by local steps and bandwidth."""
    heads = [f"{bandwidth_text(bits)}: published | ours" for bits in BANDWIDTHS]
    lines = [f"| local steps | {' | '.join(heads)} |", f"| ---: {'| ---: | ---: ' * len(BANDWIDTHS)}|"]
    for every, published in PUBLISHED.items():
        cells = [
            f"{theirs:g} | {100 * share(every, bits, speed):.3g}"
            for bits, theirs in zip(BANDWIDTHS, published, strict=True)
        ]
        lines.append(f"| {every} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    main()
