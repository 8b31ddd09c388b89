"""The name of a workload that is a file: a part of the names of directories, whatever the file is called."""

import re

import pytest

from istbench.base.errors import UserError
from istbench.base.options.task_file import CODE_NAME, named_with_file, task_name


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("my_task.py", "my_task"),
        ("a/b/my-task.v2.py", "my-task.v2"),
        ("größe.py", "grosse"),
        ("gro\u0308ße.py", "grosse"),
        ("Ærø søster.py", "AEro_soster"),
        ("my task (1).py", "my_task_1"),
        ("_private.py", "private"),
        ("-dash.py", "dash"),
        (".hidden.py", "hidden"),
        ("twice.py.py", "twice_py"),
        ("random.py", "random"),
    ],
)
def test_the_name_of_a_file_becomes_readable_ascii(file, name):
    assert task_name(file) == name
    assert named_with_file(file) == (name, (file,))


@pytest.mark.parametrize("file", ["数据.py", "数据2.py", ".py", "-.py", "x" * 90 + ".py", "\udcff.py", "a\n.py"])
def test_every_name_fits_a_directory(file):
    assert re.match(CODE_NAME, task_name(file))


def test_names_without_latin_letters_stay_apart():
    assert task_name("数据.py") != task_name("数字.py")
    assert task_name("x" * 90 + ".py") != task_name("x" * 91 + ".py")
    assert task_name("дом2.py") != task_name("том2.py")


def test_a_path_that_no_header_can_record_is_refused():
    with pytest.raises(UserError, match="--workload: .* UTF-8"):
        named_with_file("gr\udcf6sse.py")
