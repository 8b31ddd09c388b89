"""The command that makes a recorded run again."""

import re
import shlex
from pathlib import Path

from istbench.base.errors import UserError
from istbench.base.options.run import Lab
from istbench.cluster.profile import typed_bandwidth
from istbench.results.header import Header

_EPOCHS = r"(\d{1,12}(?:\.\d{1,12})?(?:e[+-]?\d{1,3})?) epochs"


def rerun_command(header: Header) -> str | None:
    """The command line that trains the cell of `header` from the start; None if its options are no valid request.

    It has the value of every option of the method and the workload, also of those that the user left out. So it
    names the same cell after a change of defaults. It has the --data that the user typed; the content of the data
    must be equal.
    """
    config = header.config
    epochs = re.match(_EPOCHS, header.budget)
    length = {"steps": None, "epochs": float(epochs[1])} if epochs else {}
    try:
        request = config.request(data=Path(header.typed_data) if header.typed_data else None, **length)
    except UserError:
        return None
    words = [*request.arguments(), "--again"]
    lab = [] if config.lab is None else [*_lab(config.lab, config.nodes), "--"]
    return shlex.join(["istbench", *lab, *words])


def _lab(lab: Lab, nodes: int) -> list[str]:
    words = ["lab", f"--nodes={nodes}", f"--bandwidth={typed_bandwidth(lab.bandwidth)}"]
    if lab.latency_s:
        words.append(f"--latency={lab.latency_s * 1e6:g}us")
    if lab.hosts is not None:
        words += [f"--host-nodes={lab.hosts.nodes}", f"--inside={typed_bandwidth(lab.hosts.bandwidth)}"]
    if lab.uplink is not None:
        words += [f"--racks={-(-nodes // lab.uplink.nodes)}", f"--uplink={typed_bandwidth(lab.uplink.bandwidth)}"]
    return words
