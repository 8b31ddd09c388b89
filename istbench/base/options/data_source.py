"""The data of a run, as the run records it."""

import hashlib

import msgspec

from istbench.base.options.numbers import Natural
from istbench.base.options.texts import Message, Text


class DataSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prepared data: its place and its content.

    Attributes:
        kind: "synthetic", or a name of the real data, such as "speech_commands".
        path: the directory of prepared files, which `Workload.open` maps; empty for data that is not stored.
        fingerprint: hex digest of the prepared content; equal data has an equal fingerprint.
        train, test: numbers of samples.
        note: one line for the user, for example about synthetic data; may be empty.
        name: of the data set, for readers; the kind if empty.
        unit: the word for samples.
        whole: samples of the complete data set, if known.
        learnable: a model can learn from the data. On noise, no run reaches a target.
        before_split: the data as the workload gave it, where `train` and `test` are the two parts of its training
            split (`--held-out`); None for other data.
    """

    kind: Text
    path: Text = ""
    fingerprint: Text
    train: Natural
    test: Natural
    note: Message = ""
    name: Text = ""
    unit: Text = "samples"
    whole: Natural | None = None
    learnable: bool = True
    before_split: "DataSource | None" = None

    def __post_init__(self) -> None:
        if self.before_split is not None and self.before_split.before_split is not None:
            raise ValueError("must be split once at most")

    @classmethod
    def computed(cls, content: bytes, *, train: int, test: int, note: str, learnable: bool = True) -> "DataSource":
        """Synthetic data that each process computes. `content` is the data, or the values that determine it."""
        digest = hashlib.sha256(content).hexdigest()
        return cls(
            kind="synthetic", path="", fingerprint=digest, train=train, test=test, note=note, learnable=learnable
        )

    @property
    def comparable(self) -> str:
        """Runs of equal texts share tables: the fingerprint, or that before a split, which the seed decides."""
        before = self.before_split
        return self.fingerprint if before is None else f"{before.fingerprint}/{self.train}/{self.test}"

    @property
    def seen(self) -> str:
        """The name and size of the data, such as `speech_commands, 4,785 of 105,829 clips: a subset`."""
        name = self.name or ("SYNTHETIC data" if self.kind == "synthetic" else self.kind)
        count = self.train + self.test
        if self.before_split is not None:
            return (
                f"{self.before_split.seen}; trained on {self.train:,} and validated on {self.test:,} others of the "
                "training split, the test split unused"
            )
        if self.whole is not None and count < self.whole:
            return f"{name}, {count:,} of {self.whole:,} {self.unit}: a subset"
        every = "all " if count == self.whole else ""
        return f"{name}, {every}{count:,} {self.unit}"
