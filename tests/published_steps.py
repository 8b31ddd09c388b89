"""Steps of a checkpoint, written and published as a run does, without torch and with any content."""

import hashlib
import shutil
from functools import reduce

from istbench.launch.hosts.remote_files import stamps
from istbench.node.checkpoint_steps import (
    LATEST,
    MANIFEST,
    ManifestEntry,
    Totals,
    find,
    manifest_of,
    newest_whole,
    step_of,
)
from istbench.results.events import digest_with


def totals_of(step, evaluations=()):
    return Totals(
        step=step, train_s=step, wall_s=step, bytes_sent=0, bytes_received=0, computing_s=(),
        evaluations=len(evaluations), evaluations_sha256=reduce(digest_with, evaluations, ""),
    )  # fmt: skip


def publish_states(checkpoint, *state):
    """Save `state`, as `DistributedCheckpoint.start` takes it, and wait until it is published."""
    checkpoint.start(*state)
    checkpoint.finish()


def write_step(directory, step, files):
    """Write the `files` of `step`: content by name."""
    (directory / str(step)).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / str(step) / name).write_bytes(content)


def publish_step(directory, step, evaluations=()):
    """Publish `step` after `evaluations`; the one before stays, older ones go."""
    folder = directory / str(step)
    listed = {
        path.name: ManifestEntry(bytes=path.stat().st_size, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
        for path in folder.iterdir()
        if path.name != MANIFEST
    }
    before = [found.totals.step for found in find(directory)][:1]
    published = step_of(directory, step, manifest_of(directory.parent.name, totals_of(step, evaluations), listed))
    for path, content in ((folder / MANIFEST, published.manifest), (directory / LATEST, published.pointer)):
        (directory / "new").write_bytes(content)
        (directory / "new").replace(path)
    for other in directory.iterdir():
        if other.is_dir() and other.name not in map(str, [step, *before]):
            shutil.rmtree(other)


def step_whole(directory):
    """The newest step whose files are as they were written; 0 where none was published."""
    step = newest_whole(directory)
    return step.totals.step if step else 0


def list_files(path):
    """Names and sizes of the plain files under `path`."""
    return [(name, size) for name, size, _ in stamps(path)]
