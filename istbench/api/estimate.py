"""The seconds of a step by every method from numbers alone, for a notebook and for `istbench estimate`."""

import html as escaping
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from istbench.api.arguments import from_python
from istbench.api.estimate_report import estimate_page, estimate_sentence, estimate_table
from istbench.api.replaying import replaying
from istbench.api.results import table_html
from istbench.base.decode import convert
from istbench.base.errors import UserError, shown
from istbench.base.options.numbers import Nodes
from istbench.base.units import number_or, parse_bandwidth, parse_parameters, parse_step, parse_time
from istbench.cluster.profile import load_profile
from istbench.plan.estimate import Estimate, checked_lines
from istbench.plan.estimate import estimate as estimate_rows
from istbench.plan.numbers import Numbers, read_layers
from istbench.plan.script_time import chosen_methods
from istbench.report.output.formats import print_report
from istbench.report.report import Report
from istbench.report.tables.table import Table

if TYPE_CHECKING:
    import pandas as pd

    from istbench.cluster.script_record import DType

_DTYPES: "dict[str, DType]" = {
    "fp32": "float32", "float32": "float32", "bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16",
    "float16": "float16",
}  # fmt: skip
_MOST_GPUS = 72
"""GPUs of the largest host: one domain of NVLink."""


@dataclass(frozen=True, kw_only=True)
class Estimated:
    """An estimate with its checks. A notebook shows the answer and the table.

    Attributes:
        found: the rows and what they follow from. checked: a line on each check of such estimates.
    """

    found: Estimate
    checked: tuple[str, ...]

    def answer(self) -> str:
        """How much faster the nodes are than one, what holds them back, and what helps most."""
        return estimate_sentence(self.found)

    @property
    def table(self) -> Table:
        """The table of the command."""
        return estimate_table(self.found, list(self.checked))

    @property
    def rows(self) -> "pd.DataFrame":
        """A row for each method: seconds of a step with their range, samples a second, bytes, bandwidths."""
        import pandas as pd

        return pd.DataFrame(self.as_json()["rows"])

    @from_python
    def page(self, file: str | Path) -> Path:
        """Write the seconds against bandwidth as one page to `file`; returns it."""
        from istbench.report.output.html.write import write_page

        with replaying():
            page = estimate_page(self.found, self.answer(), self.table)
        write_page(page, Path(file))
        return Path(file)

    @from_python
    def save(self, file: str | Path) -> Path:
        """Write a record for plan, map and replay to `file`; returns it."""
        from istbench.cluster.script_record import save_script

        save_script(self.found.record, Path(file))
        return Path(file)

    def as_json(self) -> dict[str, Any]:
        """The object of `istbench estimate --json`."""
        found, numbers = self.found, self.found.numbers
        samples = numbers.samples or 1
        return {
            "inputs": {
                "parameters": numbers.parameters,
                "step_s": numbers.step_s,
                "nodes": numbers.nodes,
                "hosts": numbers.hosts,
                "gpus_per_host": numbers.gpus_per_host,
                "bandwidth": found.cluster.bandwidth_out / found.cluster.payload,
                "latency_s": found.cluster.latency_s,
                "samples": numbers.samples,
                "dtype": numbers.dtype,
                "backward": numbers.backward,
            },
            "rows": [
                {
                    "method": row.method,
                    "options": dict(row.options),
                    "local_steps": row.local_steps,
                    "step_s": row.step_s,
                    "low": row.low_s,
                    "high": row.high_s,
                    "samples_per_s": samples * row.over_gpu / row.alone_s,
                    "over_gpu": row.over_gpu,
                    "over_host": None if found.host_samples is None else row.over_gpu / found.host_samples,
                    "computing": row.computing,
                    "sent_bytes": row.sent,
                    "bandwidth_for": {f"{level:g}": bandwidth for level, bandwidth in row.bandwidth_for.items()},
                    "steps_for": {f"{level:g}": steps for level, steps in row.steps_for.items()},
                }
                for row in found.rows
            ],
            "held_by": dict(found.held_by),
            "helps": [{"what": name, "step_s": seconds} for name, seconds in found.helps],
            "left_out": list(found.left_out),
            "checked": list(self.checked),
        }

    def __repr__(self) -> str:
        shown = io.StringIO()
        print_report(Report(answers=(self.answer(),), tables=(self.table,)), shown, explain=False)
        return shown.getvalue().rstrip()

    def _repr_html_(self) -> str:
        return f"<p>{escaping.escape(self.answer())}</p>{table_html(self.table)}"


@from_python
def estimate(
    parameters: float | str,
    step: float | str,
    nodes: int,
    *,
    bandwidth: float | str | None = None,
    latency: float | str | None = None,
    gpus_per_host: int | None = None,
    samples: int | None = None,
    dtype: str = "fp32",
    backward: float = 0.67,
    layers: str | Path | None = None,
    cluster: str | None = None,
    methods: str | Sequence[str] = (),
) -> Estimated:
    """Estimate the seconds of a step by each method from numbers alone, as `istbench estimate` does. Nothing runs.

    Args:
        parameters: Of the model, such as 125e6 or `125M`.
        step: Seconds of a step of one GPU without communication, or a text such as `220ms`.
        nodes: A GPU each; with `gpus_per_host`, the number of hosts.
        bandwidth: Of the link of a host, in bits/s or a text such as `25gbit`.
        latency: From host to host, one way, in seconds or a text such as `5ms`.
        gpus_per_host: They share the host's link.
        samples: Of a GPU in a step, for samples a second.
        dtype: Of a gradient.
        backward: Share of the step in the backward pass.
        layers: A CSV file of layers.
        cluster: A profile of links.
        methods: Rows, by default all that follow from sizes.

    Raises:
        UserError: for a number out of bounds.
    """
    profile = None if cluster is None else load_profile(cluster)
    if profile is None and bandwidth is None:
        raise UserError("estimate needs --bandwidth, the link of a host such as 25gbit, or a --cluster")
    if dtype not in _DTYPES:
        raise UserError(f"dtype {shown(dtype)} is none of {', '.join(_DTYPES)}")
    gpus = gpus_per_host or 1
    if gpus > _MOST_GPUS:
        raise UserError(
            f"--gpus-per-host {gpus}: no host has more than {_MOST_GPUS} GPUs; --nodes counts the hosts"
        )
    hosts = 1 if profile is None or profile.host is None or gpus_per_host is not None else profile.host.nodes
    total = convert(nodes * gpus, Nodes, lambda _: "--nodes times --gpus-per-host")
    numbers = Numbers(
        parameters=round(number_or(parse_parameters, parameters, "--parameters")),
        step_s=number_or(parse_step, step, "--step"),
        nodes=total,
        samples=samples,
        gpus_per_host=min(hosts, total) if gpus_per_host is None else gpus,
        bandwidth=None if bandwidth is None else number_or(parse_bandwidth, bandwidth, "--bandwidth"),
        latency_s=None if latency is None else number_or(parse_time, latency, "--latency"),
        dtype=_DTYPES[dtype],
        backward=backward,
        layers=() if layers is None else read_layers(Path(layers)),
        cluster=profile,
    )
    with replaying():
        found = estimate_rows(numbers, chosen_methods([methods] if isinstance(methods, str) else methods))
    return Estimated(found=found, checked=tuple(checked_lines(numbers, found.cluster, found.rows)))
