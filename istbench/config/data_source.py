"""What a run records of the data it trained on."""

import hashlib

import msgspec

from istbench.config.numbers import Natural


class DataSource(msgspec.Struct, frozen=True, kw_only=True):
    """Prepared data: where it is and what it is.

    Attributes:
        kind: "synthetic", or what the real data is, such as "speech_commands".
        path: the directory of prepared files, which `Workload.open` maps; empty where nothing is stored.
        fingerprint: hex digest of the prepared content; equal data has an equal fingerprint.
        train, test: number of samples.
        note: one plain line for the user, such as that the data is synthetic; may be empty.
    """

    kind: str
    path: str = ""
    fingerprint: str
    train: Natural
    test: Natural
    note: str = ""

    @classmethod
    def computed(cls, content: bytes, *, train: int, test: int, note: str) -> "DataSource":
        """Synthetic data that is computed when opened, not stored; `content` is it, or what it follows from."""
        digest = hashlib.sha256(content).hexdigest()
        return cls(kind="synthetic", path="", fingerprint=digest, train=train, test=test, note=note)
