"""The choice of a backend: this file alone knows them all."""

from collections.abc import Mapping
from typing import Any

from istbench.base.errors import UserError
from istbench.launch.backends.backend import Backend, BackendOption
from istbench.launch.backends.here import Here
from istbench.launch.backends.hosts import Hosts
from istbench.launch.backends.slurm import Slurm
from istbench.launch.backends.torchrun import Torchrun

BACKENDS: list[type[Backend]] = [Torchrun, Hosts, Slurm]


def backend_options() -> tuple[BackendOption, ...]:
    """The command-line options of all backends."""
    return tuple(option for kind in BACKENDS for option in kind.choices)


def choose(given: Mapping[str, Any], enclosing: Backend | None = None) -> Backend:
    """The backend that the user chose, by default this machine.

    Args:
        given: the values of `backend_options`, by name. enclosing: the backend that the enclosing command chose.

    Raises:
        UserError: if the user chose two, or a value is wrong.
    """
    made = [kind.chosen(given) for kind in BACKENDS]
    chosen = [backend for backend in (enclosing, *made) if backend is not None]
    if len(chosen) > 1:
        first, second, *_ = chosen
        raise UserError(f"{first.chosen_by} and {second.chosen_by} both start nodes: leave one of them out")
    return chosen[0] if chosen else Here()
