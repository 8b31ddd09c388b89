"""Folders to and from a bucket, incrementally: what has not changed does not cross the network again."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from istbench.errors import RunFailed, UserError, printable, shown
from istbench.launch.aws.checkpoints import HELD, LATEST, checkpoint_of, checkpoints, hold, let_go

RESULTS = "results/"
"""Where the results directory of the machines lies in the bucket."""

# Those that say that others are complete are brought last, and deleted first.
Stamp = tuple[int, int]
_LAST = ("run.json", LATEST)


def versions(s3: Any, bucket: str, prefix: str) -> dict[str, str]:
    """The version of each object under `prefix`, by key."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return {entry["Key"]: entry["ETag"] for page in pages for entry in page.get("Contents", [])}


class Pushed:
    """A folder as a bucket has it under `prefix`; `push` brings there what changed since.

    The bucket has the last checkpoint that a run has published, all of it: it goes once a newer one is there.
    """

    def __init__(self, s3: Any, bucket: str, prefix: str, folder: Path) -> None:
        self._s3, self._bucket, self._prefix, self._folder = s3, bucket, prefix, folder
        self._seen = _stamps(folder)

    def push(self, *, everything: bool = False) -> int:
        """Bring what is new or changed, and delete there what was deleted here; returns the number of both.

        `everything` brings also what was there from the start.
        """
        if everything:
            self._seen = {}
        let_go(self._folder)
        try:
            return self._push()
        finally:
            let_go(self._folder)

    def _push(self) -> int:
        now = _stamps(self._folder)
        sources, left = self._hold(now)
        changed = [name for name, stamp in now.items() if self._seen.get(name) != stamp]
        count = 0
        for name in sorted(changed, key=lambda name: (name.rpartition("/")[2] in _LAST, name)):
            if checkpoint_of(name) in left:
                continue
            try:
                source = sources.get(name, self._folder / name)
                self._s3.upload_file(str(source), self._bucket, self._prefix + name)
            except FileNotFoundError:  # deleted meanwhile
                now.pop(name)
                left |= {checkpoint_of(name)} - {""}
                continue
            self._seen[name] = now[name]
            count += 1
        gone = [name for name in self._seen if name not in now and checkpoint_of(name) not in left]
        for name in sorted(gone, key=lambda name: name.rpartition("/")[2] not in _LAST):
            self._s3.delete_object(Bucket=self._bucket, Key=self._prefix + name)
            del self._seen[name]
        return count + len(gone)

    def _hold(self, now: dict[str, Stamp]) -> tuple[dict[str, Path], set[str]]:
        """Hold the checkpoints that are new, and leave in `now` no file of them but these.

        Returns:
            Where to read what is held, by name, and the checkpoints that are left as the bucket has them.
        """
        sources: dict[str, Path] = {}
        left: set[str] = set()
        for checkpoint in checkpoints(now):
            latest = f"{checkpoint}/{LATEST}"
            held = None
            if latest in now and self._seen.get(latest) != now[latest]:
                held = hold(self._folder, checkpoint)
            if held is None:
                left.add(checkpoint)
                continue
            for name in [name for name in now if checkpoint_of(name) == checkpoint]:
                del now[name]
            now |= {name: _stamp(path) for name, path in held.items()}
            sources |= held
        return sources, left


def pull(s3: Any, bucket: str, prefix: str, folder: Path, have: Mapping[str, str]) -> dict[str, str]:
    """Bring all objects under `prefix` into `folder`, but those whose version `have` names and that are there.

    Returns:
        Their versions, by key.

    Raises:
        UserError: where `folder` cannot be written.
        RunFailed: for an object whose key would lie outside `folder`.
    """
    from botocore.exceptions import ClientError

    found = versions(s3, bucket, prefix)
    for key, version in list(found.items()):
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
    return found


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
            if path.is_symlink() or not path.is_file() or path.is_relative_to(folder / HELD):
                continue
            stamps[path.relative_to(folder).as_posix()] = _stamp(path)
        except OSError:  # deleted meanwhile
            continue
    return stamps


def _stamp(path: Path) -> Stamp:
    found = path.stat()
    return found.st_size, found.st_mtime_ns
