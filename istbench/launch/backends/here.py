"""Cells on this machine, one after another: on its loopback interface, or in a lab."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import msgspec

from istbench.base.errors import RunFailed, UserError
from istbench.base.options.run import RunRequest
from istbench.launch.backends.backend import Backend, Outcome, Screen, on_hosts
from istbench.launch.lab.network import ShapedNetwork
from istbench.results.store import RunDirectory


@dataclass(frozen=True, kw_only=True)
class Here(Backend):
    """This machine. Its workers talk over the loopback interface, or over the shaped links of `lab`."""

    chosen_by: ClassVar[str] = "a lab"
    lab: ShapedNetwork | None = None
    restarts: int = 0

    @property
    def nodes(self) -> int | None:
        return None if self.lab is None else self.lab.nodes

    def restarting(self, restarts: int, *, typed: bool) -> "Here":
        return dataclasses.replace(self, restarts=restarts)

    def fit(self, request: RunRequest) -> RunRequest:
        if self.lab is None:
            self.require_restarts(request)
            return request
        request = super().fit(request)
        if request.nodes != self.lab.nodes:
            raise UserError(
                f"the lab has {self.lab.nodes} nodes, not {request.nodes}; give lab --nodes {request.nodes}"
            )
        if self.lab.host_nodes > 1:
            request = on_hosts(request, [self.lab.host_nodes] * self.lab.hosts)
        return msgspec.structs.replace(request, lab=self.lab.lab)

    def begin(self, cells: Sequence[RunRequest], out: Path) -> None:
        """Unless all cells are done, start importing torch in the fork server while this process imports it."""
        from istbench.launch.cells.known import finished

        if finished(cells, out) is None:
            from istbench.launch.processes.local import preload

            preload(cells)

    def run(self, cells: Sequence[RunRequest], out: Path, again: bool, screen: Screen) -> Iterator[Outcome]:
        from istbench.launch.cells.known import finished, remember, states

        done = None if again else finished(cells, out)
        if done is not None:
            for note in sorted({cell.source.note for cell in done}):
                screen.note(note)
            for request, known in zip(cells, done, strict=True):
                run = RunDirectory.of(out, known.cell)
                yield Outcome(cell=known.cell, request=request, run=run, fresh=False, source=known.source)
            return
        from istbench.launch.processes.local import LocalLauncher, preload

        preload(cells)
        from istbench.launch.cells.execute import execute
        from istbench.launch.cells.resolve import prepare_cells
        from istbench.launch.processes.place import ThisMachine

        # A wrong name in the last cell is found before the first one trains.
        before = list(states(cells))  # data may change while it is prepared, and while cells train
        resolved = prepare_cells(cells, screen.preparing)
        after = states(cells)
        resolved_by = [state if state == then else None for state, then in zip(before, after, strict=True)]
        for note in sorted({cell.data_source.note for cell in resolved}):
            screen.note(note)
        launcher = LocalLauncher(place=self.lab or ThisMachine())
        for request, cell, state in zip(cells, resolved, resolved_by, strict=True):
            run, source = RunDirectory.of(out, cell.cell), cell.data_source
            try:
                with screen.training(cell, run) as scratch:
                    fresh = execute(cell, run, scratch, launcher, again=again, restarts=self.restarts)
            except (UserError, RunFailed) as error:
                yield Outcome(cell=cell.cell, request=request, run=run, failure=error, source=source)
            else:
                remember(request, cell, state)
                yield Outcome(cell=cell.cell, request=request, run=run, fresh=fresh, source=source)
