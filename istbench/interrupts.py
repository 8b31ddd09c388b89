"""Ctrl-C from the first line of the command on.

Inside an import, a KeyboardInterrupt can vanish or crash the process: libraries catch it, and C++ code cannot pass
it on. So a signal of that moment waits for the end of the import. After a second, it ends the process at once: a
run directory is whole at every moment, and the next command deletes temporary folders.
"""

import os
import signal
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

    def hear(self, _number: int, frame: FrameType | None) -> None:
        if not _in_import(frame):
            self._looks = 0
            raise KeyboardInterrupt
        if self._looks >= _LOOKS:
            _leave()
        self._looks += 1
        signal.signal(signal.SIGALRM, _repeat)
        signal.setitimer(signal.ITIMER_REAL, _LOOKS_S)


def _repeat(_number: int, _frame: FrameType | None) -> None:
    """Send SIGINT again: its handler may be another one by now, such as that of a launcher."""
    signal.raise_signal(signal.SIGINT)


def handle_interrupts() -> None:
    """Handle SIGINT in this process, also if a shell that started it in the background ignores the signal."""
    signal.signal(signal.SIGINT, _Interrupts().hear)


def _in_import(frame: FrameType | None) -> bool:
    """Whether `frame` is part of an import."""
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
