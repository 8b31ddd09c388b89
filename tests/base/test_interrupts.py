"""Ctrl-C while modules load: never lost, never inside an import, always one line. Real processes."""

import signal
import subprocess
import sys

import pytest

from istbench.base import interrupts

pytestmark = pytest.mark.processes

# A module of a library that swallows every error of its optional parts, as some do.
SWALLOWS = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(LASTS)
except BaseException:
    print("swallowed", flush=True)
print("imported", flush=True)
"""
COMMAND = """
from istbench.base.interrupts import handle_interrupts
handle_interrupts()
try:
    import swallows
    for _ in range(1000):
        pass
    import time
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
"""

LIMIT = """
from istbench.studies.advise.time_limit import TimeUp, at_most
from istbench.base.interrupts import handle_interrupts
handle_interrupts()
try:
    with at_most(0.1, stopping_s=60):
        import lasts
        import time
        time.sleep(60)
except TimeUp:
    print("time is up")
"""


def run(folder, lasts):
    (folder / "swallows.py").write_text(SWALLOWS.replace("LASTS", str(lasts)))
    return subprocess.run([sys.executable, "-c", COMMAND], cwd=folder, capture_output=True, text=True)


def test_ctrl_c_inside_an_import_waits_for_its_end(tmp_path):
    ended = run(tmp_path, 0.2)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("imported\ninterrupted\n", "", 0)


def test_an_import_that_lasts_ends_with_the_command(tmp_path):
    ended = run(tmp_path, 600)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("", f"istbench: {interrupts.INTERRUPTED}\n", 130)


@pytest.mark.parametrize(("pressed", "printed"), [(False, "imported\ntime is up\n"), (True, "")])
def test_a_time_limit_waits_for_a_long_import_and_ctrl_c_then_for_a_second(tmp_path, pressed, printed):
    presses = "os.kill(os.getpid(), signal.SIGINT)" if pressed else "pass"
    (tmp_path / "lasts.py").write_text(
        f"import os, signal, time\ntime.sleep(0.5)\n{presses}\ntime.sleep(1.5)\nprint('imported', flush=True)\n"
    )
    ended = subprocess.run([sys.executable, "-c", LIMIT], cwd=tmp_path, capture_output=True, text=True)
    assert (ended.stdout, ended.returncode) == (printed, 130 if pressed else 0)


@pytest.mark.parametrize("broken", ["istbench.cli", "click"])
def test_ctrl_c_in_the_imports_of_the_command_line_is_one_line(tmp_path, broken):
    """The module that Python looks for first raises the signal at its start."""
    script = f"""
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {broken!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv = ["istbench", "list", "methods"]
from istbench.__main__ import main
main()
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    said = ended.stderr.strip()  # click ends a terminal's line
    assert (ended.stdout, said, ended.returncode) == ("", f"istbench: {interrupts.INTERRUPTED}", 130)


@pytest.mark.parametrize(("lasts", "printed"), [(0.3, "uploaded\n"), (600, "")])
def test_ctrl_c_leaves_an_exit_handler_a_second_and_the_status(lasts, printed):
    script = f"""
import atexit, os, signal, sys, time
def upload():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep({lasts})
    print("uploaded")
atexit.register(upload)
sys.argv = ["istbench", "list", "methos"]
from istbench.__main__ import main
main()
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (ended.stdout, ended.returncode) == (printed, 2)
    assert "Traceback" not in ended.stderr


def test_a_command_in_the_background_of_a_shell_hears_the_signal_too(tmp_path):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a child inherits it there
    try:
        ended = run(tmp_path, 0.2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (ended.stdout, ended.stderr) == ("imported\ninterrupted\n", "")
