"""Folders to and from a bucket, incrementally: what has not changed does not cross the network again."""

import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from istbench.errors import RunFailed, UserError, printable, shown
from istbench.node.published import LATEST, MANIFEST, Broken, Step, find, newest_whole

RESULTS = "results/"
"""Where the results directory of the machines lies in the bucket."""

Stamp = tuple[int, int]
# Those that say that others are complete are brought last, in this order, and deleted first.
_LAST = (MANIFEST, LATEST, "run.json")
_TRIES = 5


def versions(s3: Any, bucket: str, prefix: str) -> dict[str, str]:
    """The version of each object under `prefix`, by key."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return {entry["Key"]: entry["ETag"] for page in pages for entry in page.get("Contents", [])}


class Pushed:
    """A folder as a bucket has it under `prefix`; `push` brings there what changed since.

    Of the checkpoint of a run the bucket has the newest published step that is whole, and the one before if that
    is still published; an older one goes once a newer one is all there.
    """

    def __init__(self, s3: Any, bucket: str, prefix: str, folder: Path) -> None:
        self._s3, self._bucket, self._prefix, self._folder = s3, bucket, prefix, folder
        self._seen = _stamps(folder)
        self._published = {directory: self._pointer(directory) for directory in self._checkpoints()}

    def push(self, *, everything: bool = False) -> int:
        """Bring what is new or changed, and delete there what was deleted here; returns the number of both.

        `everything` brings also what was there from the start.
        """
        if everything:
            self._seen, self._published = {}, {}
        before = dict(self._seen)
        plain = {name: stamp for name, stamp in _stamps(self._folder).items() if not _checkpoint_of(name)}
        gone = [name for name in self._seen if name not in plain and not _checkpoint_of(name)]
        steps = {directory: self._push_step(directory) for directory in self._checkpoints()}
        changed = sorted((name for name in plain if self._seen.get(name) != plain[name]), key=_order)
        self._upload_all(plain, [name for name in changed if not _says_complete(name)])
        for directory, step in steps.items():
            if step is not None:
                self._publish(directory, step)
            self._delete_steps(directory)
        self._upload_all(plain, [name for name in changed if _says_complete(name)])
        self._delete(gone)
        return len({name for name, _ in before.items() ^ self._seen.items()})

    def _checkpoints(self) -> list[str]:
        """The checkpoint directories here and there."""
        return sorted({_checkpoint_of(name) for name in [*_stamps(self._folder), *self._seen]} - {""})

    def _pointer(self, directory: str) -> bytes:
        """The content of `latest.json` for the newest step here, which tells steps of all runs apart."""
        steps = [found for found in find(self._folder / directory) if isinstance(found, Step)]
        return steps[0].pointer if steps else b""

    def _push_step(self, directory: str) -> Step | None:
        """Bring the files of the newest whole step of checkpoint `directory`; returns it if the bucket lacks it."""
        for _ in range(_TRIES):
            found = find(self._folder / directory)
            for step in found:
                if isinstance(step, Broken):
                    continue
                if step.pointer == self._published.get(directory):
                    break
                with suppress(Broken):
                    self._push_parts(directory, step)
                    return step
            if find(self._folder / directory) == found:
                break  # no newer step took the place of what is damaged
        return None

    def _push_parts(self, directory: str, step: Step) -> None:
        """Bring the files of `step`.

        Raises:
            Broken: where one is damaged, or a newer step took the place of this one.
        """
        step.check(step.names())
        for name in step.names():
            path = step.folder / name
            full = f"{directory}/{step.totals.step}/{name}"
            try:
                stamp = _stamp(path)
                if self._seen.get(full) != stamp:
                    self._upload(full, stamp)
            except FileNotFoundError:
                raise Broken(path, "it is missing") from None

    def _publish(self, directory: str, step: Step) -> None:
        """Write the manifest of `step`, whose files are there, and the pointer to it."""
        contents = {f"{directory}/{LATEST}": step.pointer}
        if step.files is not None:
            contents = {f"{directory}/{step.totals.step}/{MANIFEST}": step.manifest, **contents}
        for name, content in contents.items():
            self._s3.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=content)
            self._seen[name] = (len(content), hash(content))
        self._published[directory] = step.pointer

    def _delete_steps(self, directory: str) -> None:
        """Delete the steps there that are not published here any more, and those that did not come whole."""
        found = find(self._folder / directory)
        names = [name for name in self._seen if _checkpoint_of(name) == directory]
        if not found:  # the run is done, or starts anew
            self._delete(names)
            self._published.pop(directory, None)
            return
        kept = {f"{directory}/{LATEST}"}
        for step in found:
            if isinstance(step, Step):
                with suppress(Broken):
                    listed = [*step.names(), *([] if step.files is None else [MANIFEST])]
                    own = {f"{directory}/{step.totals.step}/{name}" for name in listed}
                    if own <= self._seen.keys():
                        kept |= own
        if len(kept) > 1:  # else what is there may be all that is left
            self._delete([name for name in names if name not in kept])

    def _upload_all(self, stamps: Mapping[str, Stamp], names: Iterable[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):  # deleted meanwhile
                self._upload(name, stamps[name])

    def _upload(self, name: str, stamp: Stamp) -> None:
        self._s3.upload_file(str(self._folder / name), self._bucket, self._prefix + name)
        self._seen[name] = stamp

    def _delete(self, names: Iterable[str]) -> None:
        for name in sorted(names, key=_order, reverse=True):
            self._s3.delete_object(Bucket=self._bucket, Key=self._prefix + name)
            del self._seen[name]


def pull(s3: Any, bucket: str, prefix: str, folder: Path, have: Mapping[str, str]) -> dict[str, str]:
    """Bring all objects under `prefix` into `folder`, but those whose version `have` names and that are there.

    Steps of checkpoints that left the bucket are deleted in `folder`, once one that it has is whole there.

    Returns:
        Their versions, by key.

    Raises:
        UserError: where `folder` cannot be written.
        RunFailed: for an object whose key would lie outside `folder`.
    """
    from botocore.exceptions import ClientError

    found = versions(s3, bucket, prefix)
    for key, version in sorted(found.items(), key=lambda entry: _order(entry[0])):
        path = folder / _relative(key.removeprefix(prefix))
        if have.get(key) == version and path.is_file():
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            s3.download_file(bucket, key, str(path))
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") not in ("404", "NoSuchKey"):
                raise
            found.pop(key)  # deleted meanwhile
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}; choose another --out") from None
    for directory in sorted({_checkpoint_of(key.removeprefix(prefix)) for key in found} - {""}):
        _delete_other_steps(folder / directory, {key.removeprefix(f"{prefix}{directory}/") for key in found})
    return found


def _delete_other_steps(checkpoint: Path, names: set[str]) -> None:
    """Delete the steps in `checkpoint` of which no file is among `names`, where one of the others is whole."""
    kept = {name.partition("/")[0] for name in names}
    with suppress(UserError, OSError):
        step = newest_whole(checkpoint)
        if step is not None and str(step.totals.step) in kept:
            for path in checkpoint.iterdir():
                if path.name not in kept and path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)


def unfetched(found: Mapping[str, str], have: Mapping[str, str]) -> list[str]:
    """Keys of `found` of which `have` does not name the version."""
    return [key for key, version in found.items() if have.get(key) != version]


def empty(s3: Any, bucket: str) -> int:
    """Delete every object; returns how many there were.

    Raises:
        RunFailed: naming one that cannot be deleted.
    """
    keys = list(versions(s3, bucket, ""))
    for first in range(0, len(keys), 1000):
        batch = [{"Key": key} for key in keys[first : first + 1000]]
        kept = s3.delete_objects(Bucket=bucket, Delete={"Objects": batch, "Quiet": True}).get("Errors", [])
        if kept:
            key, why = shown(kept[0]["Key"]), printable(kept[0]["Message"])
            raise RunFailed(f"bucket {bucket}: {key} cannot be deleted: {why}")
    return len(keys)


def _checkpoint_of(name: str) -> str:
    """The checkpoint directory that file `name` of a results directory lies in; empty where in none."""
    parts = PurePosixPath(name).parts
    return "/".join(parts[:3]) if len(parts) > 3 and (parts[0], parts[2]) == ("runs", "checkpoint") else ""


def _says_complete(name: str) -> bool:
    return name.rpartition("/")[2] in _LAST


def _order(name: str) -> tuple[int, str]:
    return (_LAST.index(name.rpartition("/")[2]) + 1 if _says_complete(name) else 0), name


def _relative(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise RunFailed(f"the bucket has an object of the name {shown(name)}, not istbench's; delete it")
    return path


def _stamps(folder: Path) -> dict[str, Stamp]:
    """Size and time of every file, by its name in `folder`."""
    stamps = {}
    for path in folder.rglob("*"):
        try:
            if path.is_symlink() or not path.is_file():
                continue
            stamps[path.relative_to(folder).as_posix()] = _stamp(path)
        except OSError:  # deleted meanwhile
            continue
    return stamps


def _stamp(path: Path) -> Stamp:
    found = path.stat()
    return found.st_size, found.st_mtime_ns
