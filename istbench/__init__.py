"""istbench: time-to-accuracy of distributed training methods, over the network you have.

In Python: `run` and `compare` train, `load` reads results, `estimate` and `advise` answer, `record` records a
script, and `Task` is a workload of your own functions (docs/python.md).
"""

import importlib
from typing import Any

__version__ = "0.1.0"

# Each is imported when it is used: some need torch, and `istbench --help` needs none.
_PLACES = {
    "Results": "api.results",
    "RunFailed": "base.errors",
    "Task": "api.task",
    "UserError": "base.errors",
    "advise": "api.advice",
    "compare": "api.cells",
    "estimate": "api.estimate",
    "load": "api.results",
    "read_rows": "results.frame",
    "record": "plan.recording.block",
    "run": "api.cells",
}
__all__ = [*_PLACES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
