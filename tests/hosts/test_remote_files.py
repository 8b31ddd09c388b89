"""Run directories put together beside their place, and how far runs are."""

import pytest
from published_steps import publish_step, write_step

from istbench.hosts.files import bring
from istbench.hosts.remote import ACTIONS
from istbench.hosts.remote_files import clear, how_far, list_files, place, put, safe


def test_what_was_put_together_stands_there_whole_instead_of_what_was(tmp_path):
    path = tmp_path / "results" / "runs" / "cell"
    path.mkdir(parents=True)
    (path / "old").write_text("old")
    put(path, "checkpoint/10/rank-0.json", 0, b"ab")
    put(path, "checkpoint/10/rank-0.json", 2, b"cd")
    assert list_files(path) == [("old", 3)]
    place(path)
    assert list_files(path) == [("checkpoint/10/rank-0.json", 4)]
    assert [found.name for found in (tmp_path / "results").iterdir()] == ["runs"]


def test_what_was_left_of_an_earlier_attempt_is_no_part_of_it(tmp_path):
    path = tmp_path / "results" / "runs" / "cell"
    put(path, "stale", 0, b"")
    clear(path)
    put(path, "run.json", 0, b"{}")
    place(path)
    assert list_files(path) == [("run.json", 2)]


class OtherHost:
    """Does as a host does that is asked."""

    def do(self, do, **rest):
        return ACTIONS[do](None, rest)


def test_a_run_that_is_brought_has_nothing_of_an_attempt_that_broke_off(tmp_path):
    here, theirs = tmp_path / "here" / "runs" / "cell", tmp_path / "there" / "runs" / "cell"
    here.mkdir(parents=True)
    (here / "run.json").write_text("{}")
    put(theirs, "checkpoint/10/rank-0.json", 0, b"stale")
    assert bring(OtherHost(), here, str(theirs))
    assert list_files(theirs) == [("run.json", 2)]
    assert not bring(OtherHost(), here, str(theirs))  # no further than what is there


def test_links_are_left_out(tmp_path):
    (tmp_path / "link").symlink_to("/etc/passwd")
    assert list_files(tmp_path) == []


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "a\0b"])
def test_names_outside_of_the_directory_are_not_safe(name):
    assert not safe(name)


def test_a_later_checkpoint_is_further(tmp_path):
    assert how_far(tmp_path) == [0, 0, 0]
    (tmp_path / "run.json").write_text("{}")
    assert how_far(tmp_path) == [1, 0, 0]
    write_step(tmp_path / "checkpoint", 30, {"rank-0.json": b"{}"})
    assert how_far(tmp_path) == [1, 0, 0]
    publish_step(tmp_path / "checkpoint", 30)
    assert how_far(tmp_path) == [1, 0, 30]
