"""Ctrl-C from the first line of the command on.

Inside an import, a KeyboardInterrupt can vanish or crash the process: libraries catch it, and C++ code cannot pass
it on. So a signal of that moment waits for the end of the import. After a second, it ends the process at once: a
run directory is whole at every moment, and the next command deletes temporary folders. The signal of a time limit
waits for the end of the import, however long it takes. Exit handlers also get a second after Ctrl-C.
"""

import os
import signal
import sys
from contextlib import suppress
from types import FrameType

INTERRUPTED = "interrupted; run the same command again to resume"
EXIT_INTERRUPTED = 130
_LOOKS_S, _LOOKS = 0.02, 50
_IMPORTS = "<frozen importlib"
_SHOW_CURSOR = b"\x1b[?25h"  # a progress bar hides it


class _Interrupts:
    """The handlers of SIGINT, and of the timer that repeats a signal."""

    def __init__(self) -> None:
        self._looks = 0
        self._of_limit = False  # whether a time limit sent the signal that waits
        self._sent_here = False  # whether this process sends the next signal

    def hear(self, _number: int, frame: FrameType | None) -> None:
        self._of_limit, self._sent_here = self._of_limit and self._sent_here, False
        if not _in_import(frame):
            self._looks = 0
            raise KeyboardInterrupt
        if self._looks >= _LOOKS:
            _leave()
        self._looks += not self._of_limit
        signal.signal(signal.SIGALRM, self._repeat)
        signal.setitimer(signal.ITIMER_REAL, _LOOKS_S)

    def _repeat(self, _number: int, _frame: FrameType | None) -> None:
        """Send SIGINT again: its handler may be another one by now, such as that of a launcher."""
        self._sent_here = True
        signal.raise_signal(signal.SIGINT)

    def interrupt(self, main_thread: int) -> None:
        """Send SIGINT to `main_thread` because the time is up: an import is waited for, however long it takes."""
        self._of_limit = self._sent_here = True
        signal.pthread_kill(main_thread, signal.SIGINT)


_interrupts = _Interrupts()
interrupt = _interrupts.interrupt


def handle_interrupts() -> None:
    """Handle SIGINT in this process, also if a shell that started it in the background ignores the signal."""
    signal.signal(signal.SIGINT, _interrupts.hear)


def handle_interrupts_of_exit(status: int) -> None:
    """From now on Ctrl-C leaves exit handlers a second, for instance those of a library that uploads. Then this
    process ends with `status`.
    """

    def end_soon(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, lambda *_: os._exit(status))
        signal.setitimer(signal.ITIMER_REAL, _LOOKS_S * _LOOKS)

    for stream in filter(None, (sys.stdout, sys.stderr)):  # None if it is closed
        with suppress(OSError, ValueError):
            stream.flush()
    signal.signal(signal.SIGINT, end_soon)


def _in_import(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORTS):
            return True
        frame = frame.f_back
    return False


def _leave() -> None:
    """End this process with one line, and without the exit handlers of half imported libraries."""
    cursor = _SHOW_CURSOR if os.isatty(2) else b""
    os.write(2, cursor + f"istbench: {INTERRUPTED}\n".encode())
    os._exit(EXIT_INTERRUPTED)
