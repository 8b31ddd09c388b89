"""A run directory on a file system of its own, which a fault fills (needs root)."""

import pytest

from istbench.base.errors import NoSpace
from istbench.results.events import Note
from istbench.results.store import RunDirectory
from istbench.studies.faults.small_disk import SmallDisk, why_not

LONG = Note(message="x" * 900)


@pytest.mark.processes
def test_a_filled_disk_takes_no_more_until_it_is_freed_and_its_files_stay(tmp_path):
    if reason := why_not():
        pytest.skip(reason)
    run = RunDirectory(tmp_path / "runs" / "cell")
    with SmallDisk(run.path) as disk:
        run.append(LONG)
        disk.fill()
        with pytest.raises(NoSpace, match="no space left"):
            list(map(run.append, [LONG] * 5))  # the last page has room for some
        kept = len(run.events())
        disk.free()
        run.append(LONG)
    assert not run.path.is_mount()
    assert run.events() == [LONG] * (kept + 1)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["cell", "events.jsonl", "runs"]
