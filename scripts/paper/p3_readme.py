"""The words and tables of `p3_gains.py`."""

from collections.abc import Iterable, Sequence

from p3_draw import Published
from p3_replays import (
    BASELINE,
    BATCH,
    ESTIMATED,
    MODELS,
    P3,
    PAYLOAD,
    PEAK_GFLOPS,
    PRIORITY,
    SLICING,
    WHOLE,
    Gains,
    Recorded,
    Setting,
    Sweep,
    update_seconds,
)

from istbench.report.tables.numbers import number

SHOWN = (1, 2, 4, 8, 15, 30)  # Gbit/s
_ORDER = (P3, SLICING, PRIORITY)


def readme(
    recorded: dict[str, Recorded],
    gains: dict[tuple[str, Setting], Gains],
    sweeps: dict[str, Sweep],
    published: Published,
) -> str:
    """The comparison in markdown."""
    estimated = {name: gains[name, ESTIMATED] for name in recorded}
    lines = [
        "# P3's gains, replayed",
        "",
        "Traces of real runs on four nodes are replayed on four machines with one Quadro P4000 each. The tables "
        "put the replayed gains beside the measured gains of [the paper](https://arxiv.org/abs/1905.03960). "
        "Nothing is fitted to the paper.",
        "",
        "A gain says how many more samples a second a method trains than the paper's baseline, MXNet's parameter "
        "server. Here the baseline is `parameter_server` with `split_params=1000000`. `p3` has slices of 50,000 "
        "parameters. Slicing alone is `p3` with `priority=false`. Priority alone is `p3` with `slice_params=0` "
        "on the tensors of the baseline. `istbench compare configs/paper/p3.toml` records the runs; "
        "`scripts/paper/p3_gains.py` replays them.",
        "",
        "![Gain against bandwidth](gains.png)",
        "",
        *_published_table(estimated, published),
        "",
        *_gain_table(estimated),
        "",
        "Over whole tensors: the baseline is `parameter_server` with its default options, where one server holds a "
        "whole tensor. MXNet splits tensors of more than a million parameters evenly over all servers.",
        "",
        "## Slice size",
        "",
        *_sweep_text(sweeps),
        "",
        "## The GPU's speed, an estimate",
        "",
        *_speed_table(recorded),
        "",
        *_speed_text(recorded),
        "",
        "## If the estimates are off",
        "",
        *_sensitivity_table(gains, published),
        "",
        f"Largest: the largest gain at {', '.join(map(str, SHOWN))} Gbit/s. The first row of each model and "
        "method takes the largest gain at all bandwidths of the picture.",
        "",
        "## What differs from the paper, and why",
        "",
        *_remarks(recorded, gains),
        "",
    ]
    return "\n".join(lines)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], names: int) -> list[str]:
    rules = [":---"] * names + ["---:"] * (len(header) - names)
    return [f"| {' | '.join(row)} |" for row in (header, rules, *rows)]


def _percent(gain: float) -> str:
    return f"{100 * gain:.0f} %".replace("-0 %", "0 %")


def _published_table(gains: dict[str, Gains], published: Published) -> list[str]:
    rows = []
    for name, label, bandwidth, gain in published:
        if name in gains and label in gains[name].seconds:
            found = gains[name]
            here = _percent(found.gain(label, bandwidth)) if bandwidth else "–"
            largest, at = found.largest(label)
            where = f"{bandwidth:g}" if bandwidth else "not given"
            rows.append([MODELS[name].title, label, where, _percent(gain), here, f"{_percent(largest)} at {at:g}"])
    return _table(["model", "", "Gbit/s", "published", "replayed", "largest replayed, at Gbit/s"], rows, 2)


def _gain_table(gains: dict[str, Gains]) -> list[str]:
    rows = []
    for name, found in gains.items():
        for label in (label for label in _ORDER if label in found.seconds):
            rows.append([MODELS[name].title, label, *(_percent(found.gain(label, b)) for b in SHOWN)])
        if WHOLE in found.seconds and P3 in found.seconds:
            over = [_percent(found.gain(P3, bandwidth, WHOLE)) for bandwidth in SHOWN]
            rows.append([MODELS[name].title, "p3, over whole tensors", *over])
        samples = [number(4 * BATCH / found.seconds[BASELINE][bandwidth]) for bandwidth in SHOWN]
        rows.append([MODELS[name].title, f"baseline, {MODELS[name].samples}/s of all nodes", *samples])
    return _table(["model", "", *(f"{bandwidth} Gbit/s" for bandwidth in SHOWN)], rows, 2)


def _sweep_text(sweeps: dict[str, Sweep]) -> list[str]:
    if not sweeps:
        return ["Not recorded."]
    sizes = sorted({size for sweep in sweeps.values() for steps in sweep.seconds.values() for size in steps})
    rows = [
        [MODELS[name].title, f"{bandwidth:g}", *(_percent(sweep.gain(bandwidth, size)) for size in sizes)]
        for name, sweep in sweeps.items()
        for bandwidth in sweep.seconds
    ]
    table = _table(["model", "Gbit/s", *(f"{size:,}" for size in sizes)], rows, 1)
    return ["![Gain against slice size](slices.png)", "", "Gain of `p3` by `slice_params`:", "", *table]


def _speed_table(recorded: dict[str, Recorded]) -> list[str]:
    rows = []
    for name, one in recorded.items():
        model = MODELS[name]
        compute = one.step_seconds(model)
        seconds = one.volume_bits / (PAYLOAD * 1e9)
        rows.append(
            [
                model.title, f"{one.parameters / 1e6:.1f}", f"{one.gflop:.1f}", _percent(model.utilisation),
                number(BATCH / compute), number(compute), number(seconds), number(seconds / compute),
            ]
        )  # fmt: skip
    header = [
        "model", "million parameters", "GFLOP a sample", "of the peak", "samples/s a node", "computing s a step",
        "sending s a step at 1 Gbit/s", "Gbit/s where both are equal",
    ]  # fmt: skip
    return _table(header, rows, 1)


def _speed_text(recorded: dict[str, Recorded]) -> list[str]:
    batches = ", ".join(f"{one.batch_size} of {MODELS[name].title}" for name, one in recorded.items())
    return [
        f"Samples a second = {PEAK_GFLOPS / 1000:g} TFLOP/s, the fp32 peak of a P4000, x share of the peak / "
        "operations of a forward and backward pass. The operations are counted; a multiplication and an addition "
        "are two. The shares of the peak come from public measurements of a GTX 1080, a Pascal card too, with "
        "8.87 TFLOP/s (jcjohnson/cnn-benchmarks, cuDNN 5, batch 16):",
        "",
        "- VGG-19: 16 / 0.28169 s = 57 images/s x 117.6 GFLOP = 6.7 TFLOP/s = 75 %",
        "- ResNet-50: 16 / 0.1539 s = 104 images/s x 24.3 GFLOP = 2.5 TFLOP/s = 28 %",
        "- Inception v3 and translation: not measured there; they take the share of ResNet-50",
        "",
        f"A step has {BATCH} samples a node. The runs were recorded on CPU cores with smaller minibatches "
        f"({batches}). The replay stretches the computing of every node and step to the seconds of the table, so "
        "runs differ only in their messages and the order of sending. The layers share a step's seconds as on a "
        "CPU.",
        "",
        f"Links carry {100 * PAYLOAD:.1f} % of their rate as payload, and take 50 µs to the other node. A message "
        f"holds its connection for {ESTIMATED.overhead_s * 1e6:g} µs before its bytes flow, which is an estimate "
        "too. No other message can overtake the 2 messages that a connection holds.",
    ]


def _sensitivity_table(gains: dict[tuple[str, Setting], Gains], published: Published) -> list[str]:
    rows = []
    for name, label, bandwidth, gain in published:
        for setting in dict.fromkeys(setting for other, setting in gains if other == name):
            found = gains[name, setting]
            if label in found.seconds:
                here = _percent(found.gain(label, bandwidth)) if bandwidth else "–"
                largest, at = found.largest(label)
                rows.append(
                    [
                        MODELS[name].title, label, f"{bandwidth:g}" if bandwidth else "–", _percent(gain),
                        f"{setting.speed:g}x", f"{setting.overhead_s * 1e6:g}", here,
                        f"{_percent(largest)} at {at:g}",
                    ]
                )  # fmt: skip
    header = [
        "model", "", "Gbit/s", "published", "GPU's speed", "µs a message", "replayed", "largest, at Gbit/s",
    ]  # fmt: skip
    return _table(header, rows, 2)


def _remarks(recorded: dict[str, Recorded], gains: dict[tuple[str, Setting], Gains]) -> list[str]:
    lines = [
        "- The possible gain: the baseline hides its sending behind the backward pass, about two thirds of the "
        "computing. `p3` hides it behind the forward pass too. So where sending takes as long as computing, a "
        "gain of about a third is possible, at any speed of either. It is larger where the servers of the "
        "baseline have uneven shares: one of four has 30 % of Inception v3. With less bandwidth the network is "
        "the bottleneck and the gain fades, below 2 Gbit/s in the paper too. With more bandwidth both methods "
        "hide everything.",
    ]
    if "resnet50" in recorded:
        faster = gains["resnet50", Setting(2.0, ESTIMATED.overhead_s)].gain(P3, 4)
        here, at = gains["resnet50", ESTIMATED].largest(P3)
        lines.append(
            f"- ResNet-50: the replay reaches the published gain, with {_percent(here)}, but at {at:g} Gbit/s. The "
            f"speed of the GPU decides the bandwidth: twice the estimate gives {_percent(faster)} at 4 Gbit/s. The "
            "measurement behind the estimate is of 2016; later versions of cuDNN should be faster."
        )
    if "vgg19" in recorded:
        one = recorded["vgg19"]
        sending = [number(one.volume_bits / (PAYLOAD * 1e9 * bandwidth)) for bandwidth in (15, 30)]
        whole = _percent(gains["vgg19", ESTIMATED].gain(P3, 15, WHOLE))
        updates = _updates(one)
        lines.append(
            f"- VGG-19: a link needs {sending[0]} s a step at 15 Gbit/s and {sending[1]} s at 30; a node computes "
            f"{number(one.step_seconds(MODELS['vgg19']))} s. At no speed of the GPU can the links give the "
            "published 66 %, or the 49 % of slicing alone. So the paper's baseline spends time that the replay "
            "does not have. It copies between GPU and host, handles each message in separate server processes, "
            "and sends a notification and a pull request for each key. We cannot tell which of these took the "
            f"time. The replay includes adding up and updating as this project's server did them: {updates[0]} s "
            f"of one core a step for the baseline, and {updates[1]} s for the many small slices of `p3`. Most of "
            "it is hidden. With a baseline that leaves tensors whole, one server has 81 % of the parameters; "
            f"over that baseline `p3` gains {whole} at 15 Gbit/s."
        )
    if "translation" in recorded:
        here, at = gains["translation", ESTIMATED].largest(P3)
        updates = _updates(recorded["translation"])
        lines.append(
            f"- Translation: the largest gain is {_percent(here)}, at {at:g} Gbit/s; published is 38 %. The "
            "source embedding is a sixth of the parameters. Its gradient is the last of the backward pass, and "
            "the forward pass needs it first, so no order hides it. The network has Sockeye's sizes, but made-up "
            "sentences of 20 words and a vocabulary of 16,000. We do not know the paper's vocabulary, minibatch "
            f"and bandwidth. On faster links the servers are the bottleneck: they work {updates[1]} s a step for "
            f"`p3` and {updates[0]} s for the baseline, because every slice has a fixed cost here."
        )
    lines.append(
        "- A trace has the computing of the training thread, which the replay stretches to the speed of the GPU. "
        "It also has the sums and updates of the servers, as recorded: one slice after the other on a separate "
        "core. Senders and receivers cost only the fixed time of a message."
    )
    return lines


def _updates(one: Recorded) -> list[str]:
    """Seconds that a server works in a step, of the baseline and of P3."""
    return [number(update_seconds(one.traces[label])) for label in (BASELINE, P3)]
