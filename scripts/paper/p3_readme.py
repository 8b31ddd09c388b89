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
        "Traces of real runs on four nodes, replayed on four machines with a Quadro P4000 each, beside the "
        "gains that the paper measured ([arXiv 1905.03960](https://arxiv.org/abs/1905.03960)). Nothing is fitted "
        "to those.",
        "",
        "A gain is how many more samples a second are trained than by the paper's baseline, MXNet's parameter "
        "server: here `parameter_server` with `split_params=1000000`. `p3` has slices of 50,000 parameters; "
        "slicing alone is `p3` with `priority=false`, priority alone `p3` with `slice_params=0` on the baseline's "
        "tensors. Recorded by `istbench compare configs/paper/p3.toml`, replayed by `scripts/paper/p3_gains.py`.",
        "",
        "![Gain against bandwidth](gains.png)",
        "",
        *_published_table(estimated, published),
        "",
        *_gain_table(estimated),
        "",
        "Over whole tensors: over `parameter_server` as it is by default, where a tensor has one server. MXNet "
        "splits those of more than a million parameters evenly over all servers.",
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
        f"Largest: of {', '.join(map(str, SHOWN))} Gbit/s; in the first row of each, of all that are drawn.",
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
        f"Samples a second = {PEAK_GFLOPS / 1000:g} TFLOP/s, a P4000's fp32 peak, x share of the peak / operations "
        "of a forward and backward pass (counted; a multiplication and an addition are two). The shares are those "
        "of a GTX 1080 (Pascal too, 8.87 TFLOP/s) in public measurements (jcjohnson/cnn-benchmarks, cuDNN 5, batch "
        "16): VGG-19 16 / 0.28169 s = 57 images/s x 117.6 GFLOP = 6.7 TFLOP/s = 75 %; ResNet-50 16 / 0.1539 s = "
        "104 images/s x 24.3 GFLOP = 2.5 TFLOP/s = 28 %. Of Inception v3 and translation there was no measurement; "
        "they take ResNet-50's.",
        "",
        f"A step is {BATCH} samples a node. It was recorded on CPU cores with smaller minibatches ({batches}); "
        "every node's compute in every step is then stretched to the table's seconds, so runs differ only in what "
        "they send and when. How a step's seconds spread over its layers stays a CPU's.",
        "",
        f"Links carry {100 * PAYLOAD:.1f} % of their rate as payload, and take 50 µs to the other node. A message "
        f"holds its connection for {ESTIMATED.overhead_s * 1e6:g} µs before its bytes flow, an estimate too. A "
        "connection holds 2 messages that can no longer be overtaken.",
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
        "- What can be had: the baseline hides what it sends behind the backward pass, about two thirds of the "
        "computing, `p3` behind the forward pass too. So about a third is to be had where sending takes as long "
        "as computing, whatever the speed of either; more where the baseline's servers have uneven shares (30 % of "
        "Inception v3 at one of four). With less bandwidth the network is the bottleneck and the gain fades, below "
        "2 Gbit/s in the paper too; with more, both hide everything.",
    ]
    if "resnet50" in recorded:
        faster = gains["resnet50", Setting(2.0, ESTIMATED.overhead_s)].gain(P3, 4)
        here, at = gains["resnet50", ESTIMATED].largest(P3)
        lines.append(
            f"- ResNet-50: the published gain is there, {_percent(here)}, but at {at:g} Gbit/s. Where it is "
            f"follows from the GPU's speed: twice the estimate gives {_percent(faster)} at 4 Gbit/s. The "
            "measurement behind the estimate is of 2016; later cuDNN should be faster."
        )
    if "vgg19" in recorded:
        one = recorded["vgg19"]
        sending = [number(one.volume_bits / (PAYLOAD * 1e9 * bandwidth)) for bandwidth in (15, 30)]
        whole = _percent(gains["vgg19", ESTIMATED].gain(P3, 15, WHOLE))
        updates = _updates(one)
        lines.append(
            f"- VGG-19: a link needs {sending[0]} s a step at 15 Gbit/s and {sending[1]} s at 30, a node computes "
            f"{number(one.step_seconds(MODELS['vgg19']))} s. 66 % and, by slicing alone, 49 % cannot come from the "
            "links, whatever the GPU's speed: the paper's baseline must have spent time that the replay has not. "
            "There are copies between GPU and host, handling of each message in server processes of their own, a "
            "notification and a pull request for each key; which of them it was, we cannot tell. Adding up and "
            f"updating is in the replay, as long as this project's server took here, {updates[0]} s a step of one "
            f"core for the baseline and {updates[1]} s for the many small slices of p3: most of it is hidden. "
            f"Over a baseline that leaves tensors whole, 81 % of the parameters at one server, p3 gains {whole} at "
            "15 Gbit/s."
        )
    if "translation" in recorded:
        here, at = gains["translation", ESTIMATED].largest(P3)
        updates = _updates(recorded["translation"])
        lines.append(
            f"- Translation: at most {_percent(here)}, at {at:g} Gbit/s, against 38 %. The source embedding, a "
            "sixth of the parameters, is the last gradient of the backward pass and the first thing the forward "
            "pass needs: no order hides it. The network has Sockeye's sizes, but made-up sentences of 20 words and "
            "a vocabulary of 16,000; the paper's vocabulary, minibatch and bandwidth are not in the figures we "
            f"have. On faster links servers are the bottleneck: they work {updates[1]} s a step for p3 and "
            f"{updates[0]} s for the baseline, as every slice has a fixed cost here."
        )
    lines.append(
        "- Traces hold what the training thread computes, here stretched to the GPU's speed, and what servers add "
        "up and update, one slice after the other on a core of its own, as recorded. Senders and receivers cost "
        "nothing in the replay but the fixed time of a message."
    )
    return lines


def _updates(one: Recorded) -> list[str]:
    """Seconds that a server works in a step, of the baseline and of P3."""
    return [number(update_seconds(one.traces[label])) for label in (BASELINE, P3)]
