"""Two published steps and damage to their files: a damaged step is never loaded, and the other is taken."""

import hashlib
import json
import random
import shutil
from threading import Event

import pytest
import torch
from garbage import one_line
from published_steps import publish_states
from ranks import on_ranks

from istbench.base.errors import NoSpace, UserError
from istbench.launch.hosts.remote_files import how_far
from istbench.node import checkpoint
from istbench.node.checkpoint_steps import Totals, find, newest, newest_whole
from istbench.node.distributed_checkpoint import DistributedCheckpoint

RANKS, CASES = 2, 200


def totals_of(step):
    return Totals(
        step=step, train_s=step / 2, wall_s=step, bytes_sent=4e9, bytes_received=1, computing_s=(), evaluations=0,
        evaluations_sha256="",
    )  # fmt: skip


def state_of(step, rank):
    """Large enough for most of the bytes to be of tensors."""
    alike = torch.Generator().manual_seed(step)
    own = torch.Generator().manual_seed(1000 * step + rank)
    return {
        "method": {"model": {"weight": torch.randn(40, 30, generator=alike)}, "step": step},
        "random": torch.randn(300, generator=own),
    }


def is_shared(keys):
    return keys[:2] == ("method", "model")


def write(directory, *steps):
    def act(fabric):
        parts = DistributedCheckpoint(directory, fabric)
        parts.read()
        for step in steps:
            publish_states(parts, totals_of(step), state_of(step, fabric.rank), is_shared)

    on_ranks(RANKS, act)


def read(directory, ranks=RANKS):
    """What every rank goes on from: totals, state, damage."""
    return on_ranks(ranks, lambda fabric: DistributedCheckpoint(directory, fabric).read())


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def step_read(directory):
    """The step that all ranks go on from, bit for bit, and what is said of a newer one."""
    found = read(directory)
    (step,) = {totals.step for totals, _, _ in found}
    for rank, (totals, state, _) in enumerate(found):
        assert totals == totals_of(step)
        assert same(state, state_of(step, rank))
    return step, found[0][2]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A directory with steps 20 and 40 published."""
    directory = tmp_path_factory.mktemp("whole") / "cell" / "checkpoint"
    write(directory, 20, 40)
    return directory


@pytest.fixture
def copied(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "cell" / "checkpoint")


FILES = [
    "latest.json",
    *(f"40/{name}" for name in ("manifest.json", "shared.safetensors")),
    *(f"40/rank-{rank}.{kind}" for rank in range(RANKS) for kind in ("json", "safetensors")),
]


def truncated(path, chance):
    content = path.read_bytes()
    path.write_bytes(content[: chance.randrange(len(content))])


def flipped(path, chance):
    content = bytearray(path.read_bytes())
    for at in chance.sample(range(len(content)), min(len(content), chance.choice([1, 2, 64]))):
        content[at] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def swapped(path, chance):
    """Another step's file in its place, or one of another rank, or of another kind."""
    directory = path.parent if path.name == "latest.json" else path.parent.parent
    others = [other for other in directory.rglob("*") if other.is_file()]
    content = path.read_bytes()
    different = [other for other in others if other.read_bytes() != content]
    shutil.copyfile(chance.choice(different), path)


def removed(path, chance):
    path.unlink()


def emptied(path, chance):
    path.write_bytes(b"")


def longer(path, chance):
    with path.open("ab") as file:
        file.write(chance.randbytes(chance.choice([1, 100])))


def json_or_none(path):
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


DAMAGES = [truncated, flipped, flipped, flipped, swapped, removed, emptied, longer]


def test_two_whole_steps_stay_and_the_newer_is_taken(whole):
    assert sorted(path.name for path in whole.iterdir()) == ["20", "40", "latest.json"]
    assert step_read(whole) == (40, "")


@pytest.mark.parametrize("seed", range(CASES))
def test_a_damaged_file_of_the_newer_step_is_never_loaded_and_the_run_goes_on(copied, whole, seed):
    chance = random.Random(seed)
    name = FILES[seed % len(FILES)]
    chance.choice(DAMAGES)(copied / name, chance)
    step, said = step_read(copied)
    assert step == (40 if name == "latest.json" else 20)
    if name == "latest.json" and json_or_none(copied / name) == json_or_none(whole / name):
        return  # another way to write the same numbers
    assert f"{copied / name} is broken (" in said
    assert "\n" not in said


@pytest.mark.parametrize("name", FILES)
def test_the_step_that_was_taken_stays_beside_the_next_and_the_damaged_one_goes(copied, name):
    (copied / name).write_bytes(b"")
    step, _ = step_read(copied)
    write(copied, 60)
    assert step_read(copied) == (60, "")
    assert sorted(path.name for path in copied.iterdir()) == sorted([str(step), "60", "latest.json"])


def test_the_pointer_names_the_step_that_was_taken(copied):
    """Else the launcher would judge the events of the run by the damaged step."""
    flipped(copied / "40" / "rank-1.safetensors", random.Random(0))
    assert newest(copied).totals.step == 40
    assert step_read(copied)[0] == 20
    assert newest(copied).totals.step == 20
    assert step_read(copied) == (20, "")


@pytest.mark.parametrize("seed", range(20))
def test_damage_to_both_steps_is_one_line_that_names_a_file_and_the_way_out(copied, seed):
    chance = random.Random(seed)
    names = [FILES[1:][seed % (len(FILES) - 1)], chance.choice(FILES[1:]).replace("40/", "20/")]
    for name in names:
        chance.choice(DAMAGES)(copied / name, chance)
    with pytest.raises(UserError) as caught:
        read(copied)
    said = one_line(caught.value)
    assert str(copied / names[0]) in said
    assert said.endswith(f"and no older one is whole; delete {copied} to start the cell again from step 0")


def test_a_run_that_starts_by_itself_deletes_damaged_steps_and_begins_anew(copied):
    for step in ("20", "40"):
        flipped(copied / step / "rank-1.safetensors", random.Random(0))

    def act(fabric):
        parts = DistributedCheckpoint(copied, fabric)
        found = parts.read(anew=True)
        publish_states(parts, totals_of(10), state_of(10, fabric.rank), is_shared)
        return found, parts.given_up

    (first, said), other = on_ranks(RANKS, act)
    assert first is None
    assert other == (None, "")
    assert said.startswith(f"checkpoint {copied / '40' / 'rank-1.safetensors'} is broken (")
    assert said.endswith("and no older one is whole; the run starts again from step 0")
    assert step_read(copied) == (10, "")


def test_files_exchanged_between_the_steps_are_damage_to_both(copied):
    one, other = (copied / step / "rank-1.safetensors" for step in ("20", "40"))
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    with pytest.raises(UserError, match="no older one is whole"):
        read(copied)


def test_a_step_that_was_not_published_is_no_damage(copied):
    shutil.copytree(copied / "40", copied / "50")
    (copied / "50" / "manifest.json").unlink()
    assert step_read(copied) == (40, "")


def test_a_step_beyond_the_pointer_is_left_alone(copied):
    """As a run that was killed while it published leaves one, or an earlier run."""
    step = find(copied)[1]
    (copied / "latest.json").write_bytes(step.pointer)
    assert step_read(copied) == (20, "")


def test_the_older_step_goes_when_a_third_is_published_and_not_before(copied, monkeypatch):
    def fail(*_, **__):
        raise UserError("killed before it was published")

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "publish", fail)
        with pytest.raises(UserError, match="killed"):
            write(copied, 60)
    assert step_read(copied) == (40, "")
    assert (copied / "20" / "manifest.json").exists()
    write(copied, 60)
    assert sorted(path.name for path in copied.iterdir()) == ["40", "60", "latest.json"]


def test_what_all_ranks_have_is_written_once_and_a_rank_that_differs_keeps_its_own(tmp_path):
    def act(alike):
        def write_one(fabric):
            state = state_of(20, fabric.rank)
            if not alike and fabric.rank == 1:
                state["method"]["model"]["weight"][0, 0] += 1
            directory = tmp_path / str(alike)
            publish_states(DistributedCheckpoint(directory, fabric), totals_of(20), state, is_shared)
            return same(DistributedCheckpoint(directory, fabric).read()[1], state)

        return write_one

    assert on_ranks(RANKS, act(True)) == on_ranks(RANKS, act(False)) == [True, True]
    sizes = {
        alike: [(tmp_path / f"{alike}/20/rank-{rank}.safetensors").stat().st_size for rank in range(RANKS)]
        for alike in (True, False)
    }
    assert sizes[True][0] == sizes[True][1] == sizes[False][0] < 2000
    assert sizes[False][1] > 40 * 30 * 4


def test_the_launcher_looks_for_files_and_their_sizes_alone(copied):
    run = copied.parent
    (run / "run.json").write_text("{}")
    path = copied / "40" / "rank-1.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert (newest(copied).totals.step, newest_whole(copied).totals.step) == (40, 20)
    path.write_bytes(content[:-1])
    assert newest(copied).totals.step == 20
    assert how_far(run) == [1, 0, 20]
    assert newest(run / "nowhere") is None


def test_a_manifest_is_checked_by_tools_that_everyone_has(whole):
    """What `sha256sum` prints is what the manifest says."""
    step = newest(whole)
    for name in step.files:
        content = (whole / "40" / name).read_bytes()
        assert step.files[name].sha256 == hashlib.sha256(content).hexdigest()
        assert step.files[name].bytes == len(content)


class Slow(DistributedCheckpoint):
    """Writes only when it may."""

    def __init__(self, directory, fabric):
        super().__init__(directory, fabric)
        self.may = Event()

    def _write(self, *given):
        self.may.wait()
        super()._write(*given)


def test_training_goes_on_while_a_thread_writes_the_state_of_before(tmp_path):
    def act(fabric):
        slow, state = Slow(tmp_path / "checkpoint", fabric), state_of(20, fabric.rank)
        slow.start(totals_of(20), state, is_shared)
        state["method"]["model"]["weight"].zero_()
        assert slow.writes()
        assert not (slow.directory / "latest.json").exists()
        slow.may.set()
        slow.finish()
        assert not slow.writes()
        assert slow.last == 20

    on_ranks(RANKS, act)
    assert step_read(tmp_path / "checkpoint") == (20, "")


def test_what_the_thread_could_not_write_is_said_by_the_next_call(tmp_path):
    (tmp_path / "checkpoint").write_text("a file in the way")

    def act(fabric):
        blocked = DistributedCheckpoint(tmp_path / "checkpoint", fabric)
        blocked.start(totals_of(20), state_of(20, fabric.rank), is_shared)
        while True:
            blocked.writes()

    with pytest.raises(UserError, match=r"cannot write the checkpoint .*checkpoint: Not a directory; fix this"):
        on_ranks(1, act)


def test_on_a_full_disk_no_rank_publishes_and_the_older_step_stays(copied, monkeypatch):
    """Rank 1 finds no space; all know that the step is not there, and the next one is written."""
    write_one, fulls = checkpoint.write_rank, [60]

    def write_rank(directory, step, rank, state):
        if step in fulls and rank == 1:
            raise NoSpace(f"cannot write the checkpoint {directory}: No space left on device; fix this")
        return write_one(directory, step, rank, state)

    monkeypatch.setattr(checkpoint, "write_rank", write_rank)

    def act(fabric):
        parts = DistributedCheckpoint(copied, fabric)
        parts.read()
        publish_states(parts, totals_of(60), state_of(60, fabric.rank), is_shared)
        refused = parts.last, parts.unsaved, (copied / "60").exists()
        publish_states(parts, totals_of(80), state_of(80, fabric.rank), is_shared)
        return refused, parts.last, parts.unsaved

    said = f"cannot write the checkpoint {copied}: No space left on device"
    assert on_ranks(RANKS, act) == [((40, said, False), 80, "")] * RANKS
    assert step_read(copied) == (80, "")
