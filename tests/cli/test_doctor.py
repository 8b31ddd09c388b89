"""Findings of `doctor` about this machine."""

import os
from pathlib import Path

from istbench.cli import doctor_command
from istbench.cli.doctor_command import Finding


def test_a_cache_in_a_directory_of_another_user_is_broken(tmp_path, monkeypatch):
    closed, exists = tmp_path / "closed", Path.exists
    closed.mkdir()

    def refused(path, **given):
        if closed in path.parents:
            raise PermissionError(13, "Permission denied", str(path))
        return exists(path, **given)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "exists", refused)
        patched.setattr(os, "access", lambda path, mode: path != closed)
        patched.setenv("ISTBENCH_CACHE", str(closed / "x" / "y"))
        (finding,) = doctor_command._cache()
    way_out = "set ISTBENCH_CACHE to a directory that is"
    assert finding == Finding("broken", "cache", f"{closed}/x/y cannot be written; {way_out}")
