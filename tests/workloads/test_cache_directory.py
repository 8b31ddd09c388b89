"""Where prepared data is kept, as the environment names it."""

import os
from pathlib import Path

import pytest

from istbench.base.cache import cache_directory
from istbench.base.errors import UserError
from istbench.workloads.speech import Speech, SpeechOptions


def test_names_in_their_order(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("ISTBENCH_CACHE")
    assert cache_directory() == tmp_path / ".cache" / "istbench"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "istbench"
    monkeypatch.setenv("ISTBENCH_CACHE", str(tmp_path / "own"))
    assert cache_directory() == tmp_path / "own"


@pytest.mark.parametrize("name", ["", os.fsdecode(b"/tmp/\xff")], ids=["empty", "not UTF-8"])
def test_a_name_that_is_none_is_refused(monkeypatch, name):
    monkeypatch.setenv("ISTBENCH_CACHE", name)
    with pytest.raises(UserError, match="^ISTBENCH_CACHE: ") as caught:
        cache_directory()
    assert str(caught.value).isprintable()


def test_without_a_home_the_way_out_is_named(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("ISTBENCH_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(UserError, match="no home directory for prepared data; name a directory with ISTBENCH"):
        cache_directory()


@pytest.mark.parametrize("place", ["file", "file/inside", "link", "/proc", "/dev/null"])
def test_a_place_that_cannot_be_written_is_one_line(monkeypatch, tmp_path, no_progress, place):
    (tmp_path / "file").write_text("stays")
    (tmp_path / "link").symlink_to("link")
    monkeypatch.setenv("ISTBENCH_CACHE", str(tmp_path / place))
    speech = Speech(SpeechOptions(clips_per_word=2))
    for prepare in (speech.prepare, lambda _, *rest: speech.fetch("synthetic", *rest)):
        with pytest.raises(UserError, match=r"cannot write prepared data to .*ISTBENCH_CACHE$") as caught:
            prepare(None, cache_directory(), no_progress)
        assert str(caught.value).isprintable()
    assert (tmp_path / "file").read_text() == "stays"
