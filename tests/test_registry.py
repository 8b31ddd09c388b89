"""Names resolve to classes, and what does not resolve says why."""

import subprocess
import sys
from importlib.metadata import EntryPoint

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
    with pytest.raises(UserError, match="unknown method 'isst'; did you mean 'ist'.*ddp, .*ist, local_sgd"):
        registry.load_method("isst")
    with pytest.raises(UserError, match="unknown workload 'sppech'; did you mean 'speech'"):
        registry.check_name("workloads", "sppech")


def test_plug_ins_that_do_not_load_are_named(tmp_path):
    with pytest.raises(UserError, match=r"no plug-in file .*none\.py"):
        registry.load_method("mine", [str(tmp_path / "none.py")])
    broken = tmp_path / "broken.py"
    broken.write_text("import nothing_of_the_kind\n")
    with pytest.raises(UserError, match=r"broken\.py does not load: line 1: ModuleNotFoundError"):
        registry.load_method("mine", [str(broken)])


def test_own_modules_leave_out_unknown_names_and_other_packages(monkeypatch):
    points = {
        "ist": "istbench.methods.ist:A",
        "ddp": "istbench.methods.data_parallel:B",
        "theirs": "theirs.methods:C",
    }
    found = {name: EntryPoint(name, value, "istbench.methods") for name, value in points.items()}
    monkeypatch.setattr(registry, "_installed", lambda kind: found)
    own = registry.own_modules("methods", ["ist", "ddp", "ist", "theirs", "no such method"])
    assert own == ["istbench.methods.data_parallel", "istbench.methods.ist"]


def test_listing_imports_no_torch():
    code = (
        "import sys; from istbench.registry import registered; registered('methods'); registered('workloads');"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


METHOD = "from istbench.methods.local_sgd import LocalSGD\nclass Mine(LocalSGD):\n    name = 'mine'\n"


def plugin(folder, content):
    folder.mkdir()
    (folder / "mine.py").write_text(content)
    return str(folder / "mine.py")


def test_istbenchs_own_methods_and_workloads_have_no_code_to_tell_them_by(tmp_path):
    mine = plugin(tmp_path / "a", METHOD)
    assert {registry.code_of("methods", entry.name, [mine]) for entry in registry.registered("methods")} == {""}
    assert {registry.code_of("workloads", entry.name) for entry in registry.registered("workloads")} == {""}


def test_a_plug_in_is_told_by_its_content_wherever_it_lies(tmp_path):
    first, moved = plugin(tmp_path / "a", METHOD), plugin(tmp_path / "b", METHOD)
    edited = plugin(tmp_path / "c", METHOD + "# edited\n")
    code = registry.code_of("methods", "mine", [first])
    assert len(code) == 12
    assert code == registry.code_of("methods", "mine", [moved])
    assert code != registry.code_of("methods", "mine", [edited])
    assert registry.code_of("methods", "mine", [first, edited]) != code, (
        "the last of a name is the one that is used"
    )


def test_a_method_of_another_distribution_is_told_by_its_name_version_and_content(tmp_path, monkeypatch):
    info = tmp_path / "others-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[istbench.methods]\nmine = code_of_others:Mine\n")
    (tmp_path / "code_of_others.py").write_text(METHOD)
    monkeypatch.syspath_prepend(tmp_path)
    code = registry.code_of("methods", "mine")
    assert code.startswith("others 1.2 ")
    (tmp_path / "code_of_others.py").write_text(METHOD + "# edited\n")
    assert registry.code_of("methods", "mine") != code


LEAVING = ["../mine", "/tmp/mine", "a/b", "..", ".", "", "mine\n", "a" * 65]


@pytest.mark.parametrize("name", LEAVING)
def test_a_plug_in_whose_name_is_no_name_of_a_directory_is_refused(tmp_path, name):
    mine = plugin(tmp_path / "a", METHOD.replace("'mine'", repr(name)))
    with pytest.raises(UserError, match=r"plug-in .*mine\.py: Mine needs a name of letters"):
        registry.load_method(name, [mine])


def test_an_installed_name_that_is_no_name_of_a_directory_is_refused(tmp_path, monkeypatch):
    info = tmp_path / "others-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[istbench.methods]\n../mine = istbench.methods.ist:Mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"method '../mine' \(istbench.methods.ist:Mine\) needs a name of letters"):
        registry.load_method("../mine")


def test_an_unknown_name_has_no_code():
    with pytest.raises(UserError, match="unknown method 'isst'; did you mean 'ist'"):
        registry.code_of("methods", "isst")
