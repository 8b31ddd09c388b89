"""Cells on the processes of torchrun, a node each. Rank 0 runs the command, and the others train with it."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from istbench.base.errors import RunFailed, UserError
from istbench.base.options.run import RunRequest
from istbench.launch.backends.backend import Backend, OncePerLine, Outcome, Screen, described, on_hosts
from istbench.launch.hosts import run_folder
from istbench.launch.processes.world import World, this_world
from istbench.results.header import Header
from istbench.results.store import RunDirectory


@dataclass(kw_only=True)
class Torchrun(Backend):
    """The processes of `world`. A cell of fewer nodes runs on the first of them."""

    chosen_by: ClassVar[str] = "torchrun"
    world: World
    _own: Sequence[RunRequest] = field(default=(), init=False)
    _lost: bool = field(default=False, init=False)  # the last processes, while they trained the next cell

    def __post_init__(self) -> None:
        self._lost = self.world.restart > 0

    @classmethod
    def chosen(cls, given: Mapping[str, Any]) -> "Torchrun | None":
        world = this_world()
        return None if world is None else cls(world=world)

    @property
    def nodes(self) -> int:
        return self.world.size

    @property
    def shows_results(self) -> bool:
        """Whether no other host requested the run. Ranks other than 0 do not come so far."""
        return run_folder.folder() is None

    def restarting(self, restarts: int, *, typed: bool) -> "Torchrun":
        if typed and restarts:
            raise UserError(
                f"--restarts {restarts}: torchrun starts its own processes again; give torchrun --max-restarts "
                f"{restarts}, and leave --restarts out"
            )
        return self

    def fit(self, request: RunRequest) -> RunRequest:
        if request.elastic is not None and run_folder.folder() is None:
            raise UserError(
                f"--elastic {request.elastic}: torchrun starts the nodes, and has --nnodes=MIN:MAX of its own; "
                "leave --elastic out, or run it without torchrun"
            )
        each = self.world.local_size
        whole, rest = divmod(request.nodes, each)
        return on_hosts(request, [each] * whole + [rest] * (rest > 0))

    def begin(self, cells: Sequence[RunRequest], out: Path) -> None:
        """Meet the other ranks; a rank other than 0 trains cells until the end, and exits. See `Backend.begin`."""
        from istbench.launch.processes.local import preload

        self.world.first(min(map(self.world.group_of, cells), default=1))
        preload(cells)
        from istbench.launch.torchrun.meeting import leave
        from istbench.launch.torchrun.workers import follow, meet

        if self.world.rank > 0:
            follow(self.world, cells, out)
            _, status = leave(self.world, "", 0)
            sys.exit(status)
        meet(self.world, cells)
        self._own = cells

    def run(self, cells: Sequence[RunRequest], out: Path, again: bool, screen: Screen) -> Iterator[Outcome]:
        """Resolve all cells, then train one after another; see `Backend.run`.

        A cell of more nodes than processes fails, before the others start.
        """
        from istbench.launch.cells.resolve import prepare_cells

        fitting = [request for request in cells if self.world.group_of(request) <= self.world.size]
        resolved = prepare_cells(fitting, screen.preparing, here=self.world.local_size)
        for note in sorted({cell.data_source.note for cell in resolved}):
            screen.note(note)
        for request in cells:
            try:
                self.world.first(self.world.group_of(request))
            except UserError as error:
                yield Outcome(cell=described(request), failure=error)
        screen = OncePerLine(screen)
        for request, cell in zip(fitting, resolved, strict=True):
            yield self._trained(request, cell, out, again, screen)

    def _trained(self, request: RunRequest, cell: Header, out: Path, again: bool, screen: Screen) -> Outcome:
        from istbench.launch.cells.execute import execute, is_finished
        from istbench.launch.cells.restarts import restarted
        from istbench.launch.torchrun.meeting import meeting_of
        from istbench.launch.torchrun.workers import announced, lead
        from istbench.node.stopping import GrowRequest

        run, source = RunDirectory.of(out, cell.cell), cell.data_source
        again = again and not self._lost  # the processes before the loss have cleared it
        everyone = meeting_of(self.world)
        if everyone.is_to_stop():
            raise KeyboardInterrupt
        try:
            if not again and is_finished(cell, run):
                run_folder.report_cell(cell.cell)  # the host that requested it may lack its results
                return Outcome(cell=cell.cell, run=run, fresh=False, source=source)
            meeting = everyone.announce(announced(request, self._own))
            try:
                cell, launcher, network = lead(meeting, cell)
                screen.note(network)
                run_folder.report_cell(cell.cell)
                present = None if request.elastic is None else self.world.group_of(request)
                with screen.training(cell, run) as scratch, run_folder.growth(GrowRequest(scratch).set):
                    reason = run_folder.reason()
                    if reason is None and self._lost:
                        reason, self._lost = restarted(run, cell.own_metric, "torchrun"), False
                    fresh = execute(cell, run, scratch, launcher, again=again, reason=reason, present=present)
            finally:
                meeting.end()
        except (UserError, RunFailed) as error:
            return Outcome(cell=cell.cell, run=run, failure=error, source=source)
        return Outcome(cell=cell.cell, run=run, fresh=fresh, source=source)
