"""Names resolve to classes, and what does not resolve says why."""

import hashlib
import json
import os
import random
import subprocess
import sys
from importlib.metadata import EntryPoint

import msgspec
import pytest

from istbench.base.decode import decode_json, encode_own
from istbench.base.errors import UserError
from istbench.base.options.interval import Interval
from istbench.base.options.run import RunConfig
from istbench.methods.optimizer import OptimizerOptions
from istbench.node import registry


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
    with pytest.raises(UserError, match=r"no file .*none\.py"):
        registry.load_method("mine", [str(tmp_path / "none.py")])
    broken = tmp_path / "broken.py"
    broken.write_text("import nothing_of_the_kind\n")
    with pytest.raises(UserError, match=r"broken\.py does not load: line 1: ModuleNotFoundError"):
        registry.load_method("mine", [str(broken)])


def test_a_file_draws_the_same_numbers_wherever_it_loads_and_the_loader_draws_on(tmp_path):
    drawn = "random.random(), float(numpy.random.rand()), float(torch.rand(()))"
    for name in ("one.py", "two.py"):
        mine = f"class Mine(Toy):\n    name, drawn = 'mine', ({drawn})\n"
        (tmp_path / name).write_text(f"import random, numpy, torch\nfrom istbench.workloads.toy import Toy\n{mine}")
    random.seed(5)
    wanted = random.Random(5).random()
    one, two = (registry.load_workload("mine", [str(tmp_path / name)]) for name in ("one.py", "two.py"))
    assert random.random() == wanted
    assert one.drawn == two.drawn


def test_a_file_that_is_edited_in_one_process_loads_anew(tmp_path):
    file = tmp_path / "mine.py"
    text = "from istbench.workloads.toy import Toy\nclass Mine(Toy):\n    name = 'mine'\n    batch_size = {}\n"
    sizes = []
    for size in (32, 64, 32):
        file.write_text(text.format(size))
        sizes.append(registry.load_workload("mine", [str(file)]).batch_size)
    assert sizes == [32, 64, 32]


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


@pytest.mark.processes
def test_listing_imports_no_torch():
    code = (
        "import sys; from istbench.node.registry import registered; registered('methods'); registered('workloads');"
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


def test_a_class_that_lacks_functions_or_has_an_option_that_no_record_can_hold_is_told_so(tmp_path):
    abstract = "from istbench.methods.base import Method\nclass Mine(Method):\n    name = 'mine'\n"
    with pytest.raises(UserError, match=r"Mine lacks assemble, .*load_state_dict"):
        registry.load_method("mine", [plugin(tmp_path / "a", abstract)])
    options = """
    @dataclasses.dataclass(frozen=True)
    class Options:
        dtype: torch.dtype = torch.float32
"""
    with pytest.raises(UserError, match="the default of option dtype must be a number"):
        registry.load_method("mine", [plugin(tmp_path / "b", f"import dataclasses, torch\n{METHOD}{options}")])


def test_the_code_of_an_update_rule_is_part_of_a_cell(tmp_path, monkeypatch):
    info = tmp_path / "others-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[istbench.optimizers]\nsign = others_sign:SIGN\n")
    (tmp_path / "others_sign.py").write_text("SIGN = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert registry.code_of_cell("toy", "ddp", options={"optimizer": "adam"}) == ""
    found = registry.code_of_cell("toy", "ddp", options={"optimizer": "sign"})
    assert found.startswith("others 1.2 ")
    (tmp_path / "others_sign.py").write_text("SIGN = 2\n")
    assert registry.code_of_cell("toy", "ddp", options={"optimizer": "sign"}) != found


def test_an_unknown_name_has_no_code():
    with pytest.raises(UserError, match="unknown method 'isst'; did you mean 'ist'"):
        registry.code_of("methods", "isst")


CONFIG = RunConfig(
    workload="toy", method="ist", workload_options={}, method_options={}, nodes=2, seed=0, batch_size=8, steps=9,
    eval_every=Interval(steps=3), device="cpu", threads=1,
)  # fmt: skip


@pytest.fixture
def evil(tmp_path):
    """A method in a file that shows when it is imported, as a results folder may hold it."""
    path = tmp_path / "evil.py"
    path.write_text(
        f"open({str(tmp_path / 'EXECUTED')!r}, 'a')\n"
        "from istbench.methods.data_parallel import DataParallel\n"
        "class Evil(DataParallel):\n    name = 'evil'\n"
    )
    return path


def recorded(path, **changed):
    """The record of a run that names the file at `path`."""
    return msgspec.structs.replace(CONFIG, plugins=(str(path),), **changed)


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def test_no_path_of_a_record_is_imported(evil, tmp_path):
    assert registry.plugins_of(recorded(evil), ()) == ()
    told = rf"\(digest {digest(evil)}\); give your copy of it by --plugin evil\.py$"
    with pytest.raises(UserError, match=told):
        registry.plugins_of(recorded(evil, method="evil", code=digest(evil)), ())
    with pytest.raises(UserError, match=r": istbench has no evil; give your copy of it by --plugin evil\.py$"):
        registry.plugins_of(recorded(evil, method="evil"), ())
    assert not (tmp_path / "EXECUTED").exists()


def test_a_file_of_another_digest_is_not_imported(evil, tmp_path):
    other = tmp_path / "mine" / "evil.py"
    other.parent.mkdir()
    other.write_text(evil.read_text() + "# edited\n")
    said = (
        rf"\(digest {digest(evil)}\), and evil\.py has digest {digest(other)}; give your copy from before the "
        r"change by --plugin evil\.py, or run the cell again with --again$"
    )
    with pytest.raises(UserError, match=said):
        registry.plugins_of(recorded(evil, method="evil", code=digest(evil)), [str(other)])
    assert registry.plugins_of(recorded(evil), [str(other)]) == ()
    assert not (tmp_path / "EXECUTED").exists()


def test_a_pipe_in_the_place_of_a_plug_in_is_named(tmp_path):
    os.mkfifo(tmp_path / "pipe.py")
    with pytest.raises(UserError, match=r"pipe.py is a pipe, not a file; give a Python file"):
        registry.plugins_of(CONFIG, [str(tmp_path / "pipe.py")])


def test_the_file_of_the_command_line_with_the_recorded_digest_is_the_code(evil, tmp_path):
    copy = tmp_path / "mine" / "copy.py"
    copy.parent.mkdir()
    copy.write_text(evil.read_text())
    given = [str(tmp_path / "mine" / "copy.py"), __file__]
    config = recorded("gone.py", method="evil", code=digest(evil))
    assert registry.plugins_of(config, given) == (str(copy),)
    with pytest.raises(UserError, match=r"^unknown method 'other'"):
        registry.plugins_of(msgspec.structs.replace(config, method="other"), given)
    with pytest.raises(
        UserError,
        match=rf"its record names the code {digest(evil)}, but ist and toy here are those of istbench; run the",
    ):
        registry.plugins_of(msgspec.structs.replace(config, method="ist"), given)


def test_code_of_an_installed_package_has_the_recorded_version(monkeypatch):
    monkeypatch.setattr(registry, "code_of", lambda kind, name, plugins=(): "theirs 1.0 ab" * (name == "toy"))
    assert registry.plugins_of(msgspec.structs.replace(CONFIG, code="theirs 1.0 ab"), ()) == ()
    for code in ("theirs 0.9 cd", ""):
        said = "--plugin FILE.py$|its record names no code beside istbench, but ist and toy here are theirs 1.0 ab"
        with pytest.raises(UserError, match=said):
            registry.plugins_of(msgspec.structs.replace(CONFIG, code=code), ())


@pytest.mark.parametrize("name", ["results/evil.py", "evil.py", "../evil", "file:evil.py", "evil:Evil", "", "a\n"])
def test_a_record_names_methods_and_workloads_by_no_path(name):
    plain = msgspec.to_builtins(CONFIG, enc_hook=encode_own)
    for field in ("method", "workload"):
        with pytest.raises(UserError, match=rf"^run\.json: {field} must match .*; delete it$"):
            decode_json(json.dumps({**plain, field: name}).encode(), RunConfig, "run.json", "delete it")


def test_another_optimizer_than_the_defaults_are_for_takes_its_own_rates():
    for workload, rule, other in (("cifar10", "sgd", "adamw"), ("text", "adamw", "sgd")):
        own = registry.build_workload(workload, {})
        usual = registry.build_method("ddp", {}, workload=own).options
        chosen = registry.build_method("ddp", {"optimizer": other}, workload=own).options
        plain = OptimizerOptions(optimizer=other)
        assert (usual.optimizer, usual.lr != plain.lr) == (rule, True)
        for name in ("lr", "momentum", "beta2", "weight_decay"):
            assert getattr(chosen, name) == getattr(plain, name)
        assert chosen.schedule == usual.schedule
        assert registry.build_method("ddp", {"optimizer": rule}, workload=own).options == usual
