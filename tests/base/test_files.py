"""Files are written whole or not at all, and nothing is written through a link."""

import os
import re
from pathlib import Path

import pytest

import istbench
from istbench.base.errors import UserError
from istbench.base.files import append_line, fresh_file, kind_at, require_no_link, writing_whole

# Folders that this process has just made, that only this user may enter, or that are a cache of the user.
OWN_FOLDERS = {
    "base/activity.py": "the scratch directory of a run",
    "launch/processes/worker.py": "the scratch directory of a run",
    "launch/processes/on_nodes.py": "a temporary directory",
    "launch/processes/recorded_script.py": "a temporary directory",
    "node/peak_memory.py": "/proc",
    "launch/lab/namespaces.py": "/proc and a lock",
    "launch/lab/control_groups.py": "control groups",
    "launch/torchrun/secret.py": "its own file, of this user alone",
    "launch/hosts/agent_program.py": "the cache of a host",
    "launch/hosts/detached_job.py": "the cache of a host",
    "launch/hosts/remote_detached.py": "the cache of a host",
    "launch/hosts/run_folder.py": "the folder of one command on a host",
    "launch/hosts/remote_files.py": "a new folder, or one that `clear` has just deleted",
    "studies/faults/injector.py": "damage to a checkpoint, on purpose",
    "cli/new_command.py": "a file that must not exist",
    "cli/streams.py": "the null device",
    "workloads/prepared.py": "the cache of the user",
    "workloads/speech_data/build.py": "the cache of the user",
    "workloads/text_data/build.py": "the cache of the user",
    "workloads/image_data/build.py": "the cache of the user",
}
WRITES = re.compile(
    r"\.write_(text|bytes)\(|\bopen\((\w+, )?\"(w|x|a|r\+)|\bnp\.save\w*\((?!file\b)|savefig\((?!file\b)"
    r"|O_CREAT|O_WRONLY|\.to_(csv|parquet)\((?!file\b)"
)


def test_everything_else_is_written_by_the_functions_of_one_file():
    root = Path(istbench.__file__).parent
    writers = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if WRITES.search(path.read_text(encoding="utf-8"))
    }
    assert writers - {"base/files.py"} <= OWN_FOLDERS.keys()
    assert OWN_FOLDERS.keys() <= writers  # the list names no file in vain


def test_csv_is_written_by_one_file():
    root = Path(istbench.__file__).parent
    sources = {str(path.relative_to(root)): path.read_text(encoding="utf-8") for path in root.rglob("*.py")}
    found = {name for name, source in sources.items() if re.search(r"csv\.\w*[wW]riter\(|\.to_csv\(", source)}
    assert found == {"base/csv_text.py"}


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def private(tmp_path):
    """A file that nobody may change."""
    path = tmp_path / "home" / "private"
    path.parent.mkdir()
    path.write_text("mine\n")
    yield path
    assert path.read_text() == "mine\n"
    assert names_in(path.parent) == ["private"]


def write(path):
    with writing_whole(path) as file:
        file.write(b"ours\n")


def follow(path):
    with fresh_file(path) as file:
        file.write(b"ours\n")


@pytest.mark.parametrize("way", [write, follow])
@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_is_replaced(private, tmp_path, way, link):
    path = tmp_path / "page.html"
    link(private, path)
    way(path)
    assert not path.is_symlink()
    assert path.read_text() == "ours\n"
    assert names_in(tmp_path) == ["home", "page.html"]


def test_nobody_knows_the_temporary_name(tmp_path):
    names = set()
    for _ in range(2):
        with writing_whole(tmp_path / "page.html"):
            names.update(names_in(tmp_path))
    assert len(names - {"page.html"}) == 2


def test_a_temporary_name_that_is_taken_is_not_followed(private, tmp_path, monkeypatch):
    monkeypatch.setattr("secrets.token_hex", lambda _: "known")
    (tmp_path / "page.html.known.tmp").symlink_to(private)
    for way in (write, follow):
        with pytest.raises(FileExistsError):
            way(tmp_path / "page.html")


def test_an_error_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("before")
    with pytest.raises(TypeError), writing_whole(path) as file:
        file.write("no bytes")
    assert path.read_text() == "before"
    assert names_in(tmp_path) == ["page.html"]


def test_lines_are_appended_through_no_link(private, tmp_path):
    soft, hard = tmp_path / "soft", tmp_path / "hard"
    soft.symlink_to(private)
    with pytest.raises(OSError, match="symbolic links"):
        append_line(soft, b"ours")
    os.link(private, hard)
    with pytest.raises(OSError, match="it is a hard link to a file with another name"):
        append_line(hard, b"ours")


def test_a_folder_of_ours_that_is_a_link_is_named_with_the_way_out(private, tmp_path):
    (tmp_path / "report").symlink_to(private.parent)
    assert require_no_link(tmp_path / "logs", "") == tmp_path / "logs"
    with pytest.raises(UserError, match=r"report is a symbolic link, and .*; delete it, or choose another --out$"):
        require_no_link(tmp_path / "report", "choose another --out")


def test_lines_are_appended_to_no_pipe(tmp_path):
    os.mkfifo(tmp_path / "lines")
    with pytest.raises(OSError, match="it is a pipe or a device, not a file"):
        append_line(tmp_path / "lines", b"ours")


def test_the_kind_at_a_path_is_told_and_an_error_is_not_nothing(tmp_path):
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    found = {name: kind_at(tmp_path / name) for name in ("", "file", "pipe", "link", "loop", "none", "file/below")}
    assert list(found.values()) == ["directory", "file", "other", "file", "", "", ""]
    with pytest.raises(OSError, match="too long"):
        kind_at(tmp_path / ("long" * 100))
