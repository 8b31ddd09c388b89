"""Whatever a recorded script's file holds, it is read and can be planned and replayed, or refused in one line."""

import json

import msgspec
import pytest
from garbage import VALUES, as_json, damaged, nested, one_line, quick
from hypothesis import given
from hypothesis import strategies as st
from script_records import script_record

from istbench.base.errors import UserError
from istbench.cluster.profile import load_profile
from istbench.cluster.script_record import load_script, save_script
from istbench.plan.script_time import ChosenMethod, script_time
from istbench.plan.script_trace import plan_script, script_trace

M5 = load_profile("m5.2xlarge")
SOUND = json.loads(msgspec.json.encode(script_record()))
METHODS = [ChosenMethod(name=name, options={}) for name in ("ddp", "fsdp", "zero", "p3")]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("records") / "train.record.json"


def tried(path):
    """The plan of its methods; None where it is refused in a line that names it, or the method."""
    refused = None
    try:
        record = load_script(path)
    except UserError as error:
        refused = one_line(error)
    if refused is not None:
        assert str(path) in refused
        return None
    try:
        for method in METHODS:
            assert script_time(record, method, script_trace(record, method, 2), M5).step_s >= 0
        return plan_script(record, METHODS[0], 2, M5)
    except UserError as error:
        one_line(error)
        return None


def test_a_saved_record_is_the_same_when_loaded(path):
    save_script(script_record(), path)
    assert load_script(path) == script_record()
    assert tried(path).fits


@quick(120)
@given(content=damaged(SOUND))
def test_a_damaged_record(path, content):
    path.write_text(as_json(content), errors="surrogatepass")
    tried(path)


@quick(60)
@given(name=st.sampled_from(sorted(SOUND)), value=VALUES)
def test_any_value_for_any_field(path, name, value):
    path.write_text(as_json({**SOUND, name: value}), errors="surrogatepass")
    tried(path)


@quick(60)
@given(name=st.sampled_from(sorted(SOUND["parameters"][0])), value=VALUES)
def test_any_value_for_any_field_of_a_parameter(path, name, value):
    first, *others = SOUND["parameters"]
    path.write_text(as_json({**SOUND, "parameters": [{**first, name: value}, *others]}), errors="surrogatepass")
    tried(path)


@quick(40)
@given(content=st.binary(max_size=40))
def test_any_bytes(path, content):
    path.write_bytes(content)
    assert tried(path) is None


def test_deep_nesting(path):
    path.write_text(nested('{"a":', "}"))
    assert tried(path) is None


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"version": 7}, "version 7"),
        ({"update_s": 9.0}, "its update takes longer than its step"),
        ({"parameters": SOUND["parameters"][:-1]}, "the places of its parameters"),
        ({"parameters": [{**own, "trained": False} for own in SOUND["parameters"]]}, "it trains no parameter"),
        ({"parameters": [{**own, "dtype": "int8"} for own in SOUND["parameters"]]}, "cannot have a gradient"),
        ({"parameters": [{**own, "names": ["a"]} for own in SOUND["parameters"]]}, "the same name"),
        ({"buffers": [{"names": ["b"], "shape": [2**40, 2**40, 0], "dtype": "bool"}]}, "more bytes"),
        ({"machine": {"nodes": 1}}, "lacks the speed"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused_in_one_line(path, changed, reason):
    path.write_text(json.dumps({**SOUND, **changed}))
    with pytest.raises(UserError, match=reason) as refused:
        load_script(path)
    assert "record it again with `istbench record`" in one_line(refused.value)


def test_a_script_in_place_of_its_record_says_how_to_record_it(tmp_path):
    (tmp_path / "train.py").write_text("import torch\n")
    with pytest.raises(UserError, match="is a script; `istbench record .*train.py` makes a record of it"):
        load_script(tmp_path / "train.py")
