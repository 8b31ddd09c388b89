"""What a run records of the data it trained on."""

import hashlib
from typing import Annotated

import msgspec
from msgspec import Meta

from istbench.config.numbers import Natural

Text = Annotated[str, Meta(max_length=1_000)]


class DataSource(msgspec.Struct, frozen=True, kw_only=True):
    """Prepared data: where it is and what it is.

    Attributes:
        kind: "synthetic", or what the real data is, such as "speech_commands".
        path: the directory of prepared files, which `Workload.open` maps; empty where nothing is stored.
        fingerprint: hex digest of the prepared content; equal data has an equal fingerprint.
        train, test: number of samples.
        note: one plain line for the user, such as that the data is synthetic; may be empty.
        name: the data set's for readers; the kind where it is empty.
        unit: what its samples are called.
        whole: samples of the whole data set, where it is a known one.
        learnable: whether anything can be learnt from it; from noise it cannot, and no target be reached.
    """

    kind: str
    path: str = ""
    fingerprint: str
    train: Natural
    test: Natural
    note: str = ""
    name: Text = ""
    unit: Text = "samples"
    whole: Natural | None = None
    learnable: bool = True

    @classmethod
    def computed(cls, content: bytes, *, train: int, test: int, note: str, learnable: bool = True) -> "DataSource":
        """Synthetic data that is computed when opened, not stored; `content` is it, or what it follows from."""
        digest = hashlib.sha256(content).hexdigest()
        return cls(
            kind="synthetic", path="", fingerprint=digest, train=train, test=test, note=note, learnable=learnable
        )

    @property
    def seen(self) -> str:
        """Which data and how much of it, such as `speech_commands, 4,785 of 105,829 clips: a subset`."""
        name = self.name or ("SYNTHETIC data" if self.kind == "synthetic" else self.kind)
        count = self.train + self.test
        if self.whole is not None and count < self.whole:
            return f"{name}, {count:,} of {self.whole:,} {self.unit}: a subset"
        every = "all " if count == self.whole else ""
        return f"{name}, {every}{count:,} {self.unit}"
