"""Writing and reading a checkpoint by all ranks together; all files lie in the run directory of rank 0.

Ranks on the host of rank 0 write and read their own files. Other ranks send their state to rank 0 and receive it
from there, so that any other host may be lost. Tensors that are the same on all ranks are written once.

On one host, training goes on from a copy of the state to the next step while a thread of each rank writes it.
"""

import functools
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from istbench.base.errors import NoSpace
from istbench.base.machine import available_bytes
from istbench.base.threads import answer_by
from istbench.fabric import Fabric
from istbench.node import checkpoint
from istbench.node.checkpoint import SHARED, Flat, Keys
from istbench.node.checkpoint_steps import (
    Broken,
    ManifestEntry,
    NoneWhole,
    Step,
    Totals,
    bare_cause,
    find,
    step_of,
)

_MOST_OF_AVAILABLE = 0.25  # of the memory, for the copies of all ranks


Reshard = Callable[[Step, int], dict[str, Any]]
"""The state of a rank of this group, from the files of a step of a group of another size."""


class _Written(msgspec.Struct):
    """The files of a step that ranks have written. full: the line of a full disk; empty without one."""

    files: dict[str, ManifestEntry] = {}
    full: str = ""

    def add(self, write: Callable[[], dict[str, ManifestEntry] | None]) -> None:
        """Call `write`, and add its files. A full disk must not keep this rank from the next call."""
        try:
            self.files.update(write() or {})
        except NoSpace as error:
            self.full = self.full or bare_cause(error)

    def join(self, other: "_Written") -> None:
        self.files.update(other.files)
        self.full = self.full or other.full


class DistributedCheckpoint:
    """The checkpoint in `directory`. Every rank must call its methods alike.

    Attributes:
        last: the newest step that is known to be published. given_up: a line on damaged steps that `read` deleted.
        unsaved: the reason why the last started step was not published: the disk was full. Empty if it was.
    """

    def __init__(self, directory: Path, fabric: Fabric) -> None:
        self.directory, self._fabric = directory, fabric
        elsewhere = fabric.numbers(float(os.environ.get("GROUP_RANK", "0") != "0"))
        self._elsewhere = [rank for rank, value in enumerate(elsewhere) if value]
        self._written: Future[None] | None = None  # by the thread
        self._step: int | None = None
        self._started = 0.0  # seconds since 1970
        self.last: int | None = None
        self.given_up = self.unsaved = ""
        self._full = ""  # on rank 0, why the step of the thread is not published

    def start(
        self, totals: Totals, state: dict[str, Any], is_shared: Callable[[Keys], bool] = lambda keys: False
    ) -> None:
        """Copy the `state` of every rank. A thread writes the copy, and publishes it as the step of `totals`.

        Without memory for the copies, or with ranks on other hosts, this rank writes before it returns.

        is_shared: whether all ranks should have the same tensor at these keys of `state`; if they do, it is written
            once.

        Raises:
            UserError: the files cannot be written; also those of the step before.
        """
        self.finish()
        fabric = self._fabric
        flat = Flat.of(state, is_shared if fabric.world_size > 1 else lambda keys: False)
        fits = flat.nbytes * fabric.world_size <= _MOST_OF_AVAILABLE * available_bytes()
        beside = not self._elsewhere and all(fabric.numbers(float(fits)))
        key, totals = fabric.texts.new_key(), msgspec.structs.replace(totals)
        self._step, self._started = totals.step, time.time()
        if not beside:
            self._write(key, totals, flat)
            return
        self._written = Future()
        write = functools.partial(self._write, key, totals, flat.copied())
        threading.Thread(target=answer_by, args=(write, self._written), name="checkpoint", daemon=True).start()

    def writes(self) -> bool:
        """Whether the thread of this rank still writes.

        Raises:
            UserError: as `start`.
        """
        if self._written is None or not self._written.done():
            return self._written is not None
        self._written.result()
        return False

    def finish(self) -> None:
        """Wait until the started step is published, or `unsaved`.

        Raises:
            UserError: as `start`.
        """
        if self._written is not None:
            self._written.result()
        if self._step != self.last:
            self.unsaved = self._fabric.texts.broadcast(self._full)
            if self.unsaved:
                self._step = self.last
            self.last = self._step

    def _write(self, key: str, totals: Totals, flat: Flat) -> None:
        """Write `flat`, the state of this rank. On rank 0, publish the step when all ranks have written theirs.

        On a full disk nothing is published, and the files of the step are deleted.
        """
        fabric, written = self._fabric, _Written()
        flat = self._shared(key, totals.step, flat, written)
        if fabric.rank not in self._elsewhere:
            written.add(lambda: checkpoint.write_rank(self.directory, totals.step, fabric.rank, flat))
        if self._elsewhere:
            self._send_parts(totals.step, flat, written)
        fabric.texts.post(f"{key}/{fabric.rank}", msgspec.json.encode(written).decode())
        if fabric.rank == 0:
            for rank in range(fabric.world_size):
                word = fabric.texts.wait_posted(f"{key}/{rank}", rank)
                written.join(msgspec.json.decode(word, type=_Written))
            if not written.full:
                before, at = self.last, self._started
                written.add(lambda: checkpoint.publish(self.directory, totals, written.files, before=before, at=at))
            if written.full:
                shutil.rmtree(self.directory / str(totals.step), ignore_errors=True)
            self._full = written.full

    def _send_parts(self, step: int, flat: Flat, written: "_Written") -> None:
        """Send the state of ranks on other hosts to rank 0, which writes them."""
        fabric, sent = self._fabric, torch.empty(0, dtype=torch.uint8)
        if fabric.rank in self._elsewhere:
            sent = checkpoint.packed(flat)
        sizes = [int(size) for size in fabric.numbers(sent.numel())]
        with fabric.accounting("assemble"):
            for rank, part in fabric.gather_to_zero(sent.to(fabric.device), sizes, "writing a checkpoint"):
                if rank in self._elsewhere:
                    own = checkpoint.unpacked(part)
                    written.add(functools.partial(checkpoint.write_rank, self.directory, step, rank, own))

    def _shared(self, key: str, step: int, flat: Flat, written: "_Written") -> Flat:
        """On rank 0, write the file of the shared tensors of `flat`.

        A rank whose tensors differ from rank 0's in any bit writes all of them itself: different processors may
        round differently.
        """
        texts = self._fabric.texts
        if self._fabric.rank == 0:
            if flat.shared:
                written.add(lambda: {SHARED: checkpoint.write_shared(self.directory, step, flat.shared)})
            texts.post(f"{key}/shared", written.files[SHARED].sha256 if SHARED in written.files else "")
            return flat
        digest = checkpoint.shared_digest(flat.shared) if flat.shared else ""
        return flat if texts.wait_posted(f"{key}/shared", 0) == digest else Flat.of(flat.state())

    def read(
        self, reshard: Reshard | None = None, *, anew: bool = False
    ) -> tuple[Totals, dict[str, Any], str] | None:
        """Read the newest whole step: its totals, the state of this rank, and a line on newer damaged steps.

        None if nothing was published. All ranks read the same step.

        Afterwards `latest.json` names that step.

        Args:
            reshard: makes the states, if a group of another size wrote the step.
            anew: on rank 0: if no step is whole, delete all, and return None as if nothing was published.

        Raises:
            NoneWhole: on rank 0; steps were published, but none is whole, and not `anew`.
            OfAnotherCell: on rank 0; a step is of another cell.
        """
        fabric = self._fabric
        candidates = find(self.directory) if fabric.rank == 0 else []
        damage = ""
        while True:
            while candidates and isinstance(broken := candidates[0], Broken):
                candidates.pop(0)
                damage = damage or str(broken)
            if fabric.rank == 0 and damage and not candidates:
                none = NoneWhole(damage, self.directory)
                if not anew:
                    raise none
                # The events that a later resumption would compare with these steps count no more.
                shutil.rmtree(self.directory, ignore_errors=True)
                self.given_up = none.damage
            following = candidates.pop(0) if candidates else None
            told = f"{following.totals.step} {following.manifest.decode()}" if isinstance(following, Step) else ""
            word = fabric.texts.broadcast(told)
            if not word:
                return None
            number, _, manifest = word.partition(" ")
            step = step_of(self.directory, int(number), manifest.encode())
            state, why_not = self._tried(step, reshard)
            found = next(filter(None, fabric.texts.gather(why_not)), "")
            if not fabric.texts.broadcast(found):
                break
            damage = damage or found
        if damage and fabric.rank == 0:
            checkpoint.point_to(step)
        for rank in self._elsewhere:
            part = self._sent(step, rank, reshard)
            if rank == fabric.rank:
                state = checkpoint.unpacked(part).state()
        self.last = self._step = step.totals.step
        return step.totals, state, damage

    def _tried(self, step: Step, reshard: Reshard | None) -> tuple[dict[str, Any], str]:
        """The state of this rank at `step`, empty on another host; and the damage to the files that it reads."""
        state: dict[str, Any] = {}
        try:
            if self._other_size(step) and self._fabric.rank not in self._elsewhere:
                step.check(step.files)
            if self._fabric.rank not in self._elsewhere:
                state = self._state_of(step, self._fabric.rank, reshard)
            if self._fabric.rank == 0 and not self._other_size(step):
                for rank in self._elsewhere:
                    step.check(checkpoint.part_names(rank, step.files))
        except Broken as broken:
            return {}, str(broken)
        return state, ""

    def _other_size(self, step: Step) -> bool:
        return step.ranks != self._fabric.world_size

    def _state_of(self, step: Step, rank: int, reshard: Reshard | None) -> dict[str, Any]:
        """The state with which `rank` goes on from `step`.

        Raises:
            Broken: a file is damaged.
        """
        if not self._other_size(step):
            return checkpoint.read_whole(step, rank)
        if reshard is None:
            raise Broken(step.folder, f"{step.ranks} nodes wrote it, and {self._fabric.world_size} read it")
        with checkpoint.fitting(self.directory):
            return reshard(step, rank)

    def _sent(self, step: Step, rank: int, reshard: Reshard | None) -> Tensor:
        """Send the packed state of `rank` at `step` from rank 0; other ranks get an empty tensor."""
        fabric, part = self._fabric, torch.empty(0, dtype=torch.uint8)
        if fabric.rank == 0:
            try:
                state = self._state_of(step, rank, reshard)
            except Broken as broken:
                raise NoneWhole(broken, self.directory) from None
            part = checkpoint.packed(Flat.of(state)).to(fabric.device)
        size = int(fabric.numbers(part.numel())[0])
        with fabric.accounting("assemble"):
            if fabric.rank == 0:
                fabric.exchange({rank: part}, {}, "reading a checkpoint")
            elif fabric.rank == rank:
                part = torch.empty(size, dtype=torch.uint8, device=fabric.device)
                fabric.exchange({}, {0: part}, "reading a checkpoint")
        return part
