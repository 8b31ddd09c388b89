"""Standard output and standard error. They may be closed, full, or lack some of our characters."""

import codecs
import contextlib
import errno
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

# Replacements for an encoding without these characters. Any other missing character becomes its code: `\xe9`.
_PLAIN = {"×": "x", "–": "-", "—": "-", "─": "-", "−": "-", "±": "+-", "≥": ">=", "≤": "<=", "≈": "~", "µ": "u",
          "…": "...", "∞": "inf", "→": "->", "·": "."}  # fmt: skip
_READER_GONE = errno.EPIPE


class Streams:
    """Take the place of `sys.stdout` and `sys.stderr` inside `with`. Writing to them raises no error.

    A training must not end because nobody can read its progress. The command reports an error of standard output at
    its end. A closed pipe is no error, because its reader chose to stop reading. Nothing reports an error of
    standard error.

    Attributes:
        results: the results directory that the command writes, None if it writes none.
    """

    def __init__(self) -> None:
        self.results: Path | None = None
        self._error: OSError | None = None

    def __enter__(self) -> "Streams":
        _open_descriptors()
        self._before = sys.stdout, sys.stderr
        # A read-only descriptor in place of a closed one gives the same error on writing.
        sys.stdout = _Stream(sys.stdout or _opened(os.O_RDONLY), self._remember)
        sys.stderr = _Stream(sys.stderr or _opened(os.O_WRONLY), lambda _: None)  # nowhere to report an error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = self._before

    def problem(self) -> str:
        """The reason for missing standard output and the way out, in one line; empty if all was written."""
        sys.stdout.flush()
        if self._error is None or self._error.errno == _READER_GONE:
            return ""
        again = (
            "fix this and run the same command again"
            if self.results is None
            else f"results are safe in {self.results}, and `istbench report {self.results}` prints them again"
        )
        why = "it is closed" if self._error.errno == errno.EBADF else self._error.strerror
        return f"cannot write to standard output: {why}; {again}"

    def _remember(self, error: OSError) -> None:
        self._error = self._error or error


class _Stream:
    """Writes text to `stream`. Replaces characters that its encoding lacks, and passes errors to `failed`.

    It has no `buffer`, because click would write UTF-8 there to an ASCII terminal.
    """

    def __init__(self, stream: TextIO, failed: Any) -> None:
        self._stream, self._failed = stream, failed

    def write(self, text: str) -> int:
        try:
            self._stream.write(_writable(text, self._stream.encoding))
        except OSError as error:
            self._fail(error)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        """Pass on `error` and drop the buffered text: Python would otherwise write it again at exit."""
        self._failed(error)
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":
            raise AttributeError(name)
        return getattr(self._stream, name)


def _open_descriptors() -> None:
    """Open descriptors 0 to 2 if they are closed: otherwise a socket or a file would get their numbers."""
    for number, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, mode)
            os.set_inheritable(opened, True)  # dup2 does nothing if the number is the same
            os.dup2(opened, number)
            if opened != number:
                os.close(opened)


def _opened(mode: int) -> TextIO:
    return os.fdopen(os.open(os.devnull, mode), "w", encoding="utf-8")


def _writable(text: str, encoding: str | None) -> str:
    """`text` with only characters that `encoding` has; None has all."""
    if encoding is None:
        return text
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.encode(encoding, "istbench-plain").decode(encoding)
    return text


def _replace(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    plain = (_PLAIN.get(character, character) for character in lacking)
    return "".join(plain).encode("ascii", "backslashreplace").decode(), error.end


codecs.register_error("istbench-plain", _replace)
