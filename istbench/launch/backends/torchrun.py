"""A cell on the processes that torchrun started, a node each. Every process runs this; rank 0 speaks for all."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from istbench.base.errors import RunFailed, UserError
from istbench.base.options.run import RunRequest
from istbench.launch.backends.backend import Backend, Kind, Outcome, Screen
from istbench.launch.hosts import run_folder
from istbench.launch.torchrun.world import World, this_world
from istbench.results.store import RunDirectory


@dataclass(frozen=True, kw_only=True)
class Torchrun(Backend):
    """The processes of `world`."""

    chosen_by: ClassVar[str] = "torchrun"
    world: World

    @property
    def nodes(self) -> int:
        """The processes of torchrun."""
        return self.world.size

    @property
    def shows_results(self) -> bool:
        """Whether this is rank 0, and no other host requested the run."""
        return self.world.rank == 0 and run_folder.folder() is None

    def fit(self, request: RunRequest) -> RunRequest:
        """`request`, which has a node for each process; see `Backend.fit`."""
        self.world.nodes(request.nodes)
        return request

    def begin(self, cells: Sequence[RunRequest]) -> None:
        """Start importing torch in the fork server, while this process imports it too."""
        from istbench.launch.processes.local import preload

        preload(cells)

    def run(self, cells: Sequence[RunRequest], out: Path, again: bool, screen: Screen) -> Iterator[Outcome]:
        """Run one cell; see `Backend.run`.

        Ranks other than 0 yield nothing: they exit with the status of rank 0.
        """
        if len(cells) > 1:
            raise UserError(
                f"torchrun runs one cell, not {len(cells)}: start istbench run under it for each cell, or use "
                "istbench compare --hosts"
            )
        self.begin(cells)
        if self.world.rank > 0:
            from istbench.launch.torchrun.workers import follow

            sys.exit(follow(self.world, cells[0], out))
        yield self._lead(cells[0], out, again, screen)

    def _lead(self, request: RunRequest, out: Path, again: bool, screen: Screen) -> Outcome:
        from istbench.launch.cells.execute import execute
        from istbench.launch.cells.resolve import prepare_cell
        from istbench.launch.torchrun.meeting import meeting_of
        from istbench.launch.torchrun.workers import lead

        cell = prepare_cell(request, screen.preparing, here=self.world.local_size)
        source = cell.header.data_source
        screen.note(source.note)
        cell, launcher, network = lead(self.world, cell)
        screen.note(network)
        run_folder.report_cell(cell.name)
        run = RunDirectory.of(out, cell.name)
        try:
            with screen.training(cell.header, run) as scratch:
                fresh = execute(cell, run, scratch, launcher, again=again)
        except (UserError, RunFailed) as error:
            return Outcome(cell=cell.name, run=run, failure=error, source=source)
        meeting_of(self.world).end(0)
        return Outcome(cell=cell.name, run=run, fresh=fresh, source=source)


def _make(_given: Mapping[str, Any]) -> Torchrun | None:
    world = this_world()
    return None if world is None else Torchrun(world=world)


KIND = Kind(make=_make)
