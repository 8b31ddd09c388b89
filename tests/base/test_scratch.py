"""Temporary folders: removed on exit, and swept after a kill."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from istbench.base.scratch import scratch_folder, socket_parent


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A TMPDIR of the test's own, not swept yet. A process sweeps a path once: its path with a slash is another."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def killed_in(folder):
    """The scratch folder of a process that was killed; a file is in it."""
    script = """
import os, signal
from istbench.base.scratch import scratch_folder
with scratch_folder() as path:
    (path / "file").touch()
    print(path, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "TMPDIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    return Path(done.stdout.strip())


def test_a_folder_is_removed_on_exit(temporary):
    with scratch_folder() as path:
        assert path.parent == temporary
        (path / "file").touch()
    assert list(temporary.iterdir()) == []


@pytest.mark.processes
def test_the_folder_of_a_killed_process_is_swept_and_that_of_a_living_one_stays(temporary):
    left = killed_in(temporary)
    assert (left / "file").exists()
    with scratch_folder() as first:
        assert not left.exists()
        with scratch_folder(f"{temporary}/"):
            assert first.exists()


def test_only_folders_with_our_names_are_swept_and_no_link_is_followed(temporary, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "file").touch()
    (temporary / "istbench-run-abcdefgh").symlink_to(elsewhere)
    (temporary / "istbench-run-12345678").write_text("a file")
    for name in ("istbench-run-short", "istbench-wheel-abcdefgh", "other"):
        (temporary / name).mkdir()
    inside = temporary / "istbench-run-inside__"
    inside.mkdir()
    (inside / "link").symlink_to(elsewhere)
    before = {path.name for path in temporary.iterdir()}
    with scratch_folder() as path:
        assert {found.name for found in temporary.iterdir()} == before - {inside.name} | {path.name}
    assert (elsewhere / "file").exists()


def test_the_folders_of_other_users_stay(temporary, monkeypatch):
    (temporary / "istbench-run-abcdefgh").mkdir()
    user = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with scratch_folder():
        assert (temporary / "istbench-run-abcdefgh").exists()


def test_sockets_go_to_a_short_path(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/short")
    monkeypatch.setattr(os, "access", lambda *_: True)
    assert socket_parent() == "/short"
    monkeypatch.setattr(tempfile, "tempdir", "/" + 100 * "x")
    assert socket_parent() == "/tmp"


def test_a_folder_that_another_process_sweeps_before_it_is_locked_is_made_anew(temporary, monkeypatch):
    make, made = tempfile.mkdtemp, []

    def swept(**place):
        made.append(mine := make(**place))
        if len(made) == 1:
            with scratch_folder(f"{temporary}/"):
                assert not Path(mine).exists()
        return mine

    monkeypatch.setattr(tempfile, "mkdtemp", swept)
    with scratch_folder() as path:
        assert [str(path), path.exists()] == [made[2], True]
