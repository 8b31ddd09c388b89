"""The papers by name, each from a TOML file beside this one."""

from collections.abc import Mapping
from typing import Any

import msgspec

from istbench.base.decode import parse_toml, read_text
from istbench.base.options.suite import Suite
from istbench.studies.reproduce import NAMES
from istbench.studies.reproduce.curves import Curves, Finals, SpeedUps
from istbench.studies.reproduce.gains import MeasuredGains, ReplayedGains
from istbench.studies.reproduce.memory import PlannedMemory
from istbench.studies.reproduce.paper import PUBLISHED, Cells, Difference, Experiment, Extent, Paper

_MEASURES: Any = Curves | Finals | MeasuredGains | PlannedMemory | ReplayedGains | SpeedUps


def _load(name: str) -> Paper:
    """The paper of a file, where cells name their methods, and extents their cells and differences.

    An experiment without a `laptop` is too large for one; without `paper`, it is the same at that scale. Its
    `measure` is that of both scales, beside the fields that an extent adds.
    """
    path = PUBLISHED / f"{name}.toml"
    table = parse_toml(read_text(path, "a paper"), path.name)
    cells = {key: _cells(key, table["cells"], table["methods"]) for key in table["cells"]}
    differences = {key: Difference(**own) for key, own in table["differences"].items()}
    experiments = []
    for own in table["experiments"]:
        extents = {scale: own[scale] for scale in ("laptop", "paper") if scale in own}
        extents.setdefault("paper", extents.get("laptop"))
        at: Any = {
            scale: _extent(extent, own.get("measure", {}), cells, differences) for scale, extent in extents.items()
        }
        experiments.append(Experiment(name=own["name"], title=own["title"], at=at))
    return Paper(name=name, title=table["title"], experiments=tuple(experiments))


def _cells(name: str, rows: Mapping[str, Any], methods: Mapping[str, Any]) -> Cells:
    own = dict(rows[name])
    while "like" in own:
        own = {**rows[own.pop("like")], **own}
    estimates = {key: own[key] for key in ("hours", "hours_with_data", "weights") if key in own}
    suite = {key: value for key, value in own.items() if key not in estimates}
    suite["methods"] = tuple(map(tuple, methods[own["methods"]]))
    suite |= {"nodes": (own["nodes"],), "seeds": tuple(range(own.get("seeds", 1)))}
    return Cells(suite=Suite(**suite), **estimates)


def _extent(
    own: Mapping[str, Any],
    measure: Mapping[str, Any],
    cells: Mapping[str, Cells],
    differences: Mapping[str, Difference],
) -> Extent:
    parts: dict[str, Any] = {"measure": msgspec.convert({**measure, **own.get("measure", {})}, _MEASURES)}
    parts["cells"] = tuple(cells[name] for name in own.get("cells", ()))
    parts["differs"] = tuple(differences[name] for name in own.get("differs", ()))
    return Extent(**{**own, **parts})


PAPERS: Mapping[str, Paper] = {name: _load(name) for name in NAMES}
