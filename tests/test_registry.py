"""Names resolve to classes, and what does not resolve says why."""

import subprocess
import sys

import pytest

from istbench import registry
from istbench.errors import UserError


def test_installed_methods_and_workloads_say_what_they_are():
    methods = {entry.name: entry.summary for entry in registry.registered("methods")}
    assert {"ddp", "ist", "local_sgd"} <= methods.keys()
    assert all(methods.values())
    assert {"speech", "toy"} <= {entry.name for entry in registry.registered("workloads")}


def test_names_on_the_command_line_are_the_classes_own():
    for entry in registry.registered("methods"):
        assert registry.load_method(entry.name).name == entry.name
    for entry in registry.registered("workloads"):
        assert registry.load_workload(entry.name).name == entry.name


def test_an_unknown_name_lists_the_names_there_are():
    with pytest.raises(UserError, match="unknown method 'isst'; did you mean 'ist'.*ddp, ist, local_sgd"):
        registry.load_method("isst")
    with pytest.raises(UserError, match="unknown workload 'sppech'; did you mean 'speech'"):
        registry.check_name("workloads", "sppech")


def test_plug_ins_that_do_not_load_are_named(tmp_path):
    with pytest.raises(UserError, match=r"no plug-in file .*none\.py"):
        registry.load_method("mine", [str(tmp_path / "none.py")])
    broken = tmp_path / "broken.py"
    broken.write_text("import nothing_of_the_kind\n")
    with pytest.raises(UserError, match=r"broken\.py does not load: ModuleNotFoundError"):
        registry.load_method("mine", [str(broken)])


def test_listing_imports_no_torch():
    code = (
        "import sys; from istbench.registry import registered; registered('methods'); registered('workloads');"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
