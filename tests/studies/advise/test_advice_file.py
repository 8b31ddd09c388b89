"""Whatever an advice.json holds, a page shows it, or one line names the file."""

import msgspec
import pytest
from garbage import VALUES, as_json, damaged, one_line, quick
from hypothesis import given
from hypothesis import strategies as st
from probes import ACCURACY, LINKS, candidate

from istbench.base.errors import UserError
from istbench.studies.advise.advice_file import load_advice, save_advice
from istbench.studies.advise.advice_text import advice_section, advice_text
from istbench.studies.advise.answer import advise

CANDIDATES = (
    candidate("ddp", baseline=True),
    candidate("zero", compute=0.011),
    candidate("p3", failed="too large"),
)
ADVICE = advise(CANDIDATES, LINKS, workload="toy", nodes=2, metric=ACCURACY, target=0.8)
WHOLE = msgspec.to_builtins(ADVICE)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("advice")
    save_advice(ADVICE, folder)
    return folder


def shown(out, content):
    (out / "advice.json").write_text(as_json(content))
    try:
        found = load_advice(out)
    except UserError as error:
        refused = one_line(error)
    else:
        assert advice_section(found).title
        assert advice_text(found)
        return
    assert refused.startswith(f"{out / 'advice.json'}: ")


@quick(100)
@given(content=damaged(WHOLE))
def test_a_damaged_advice(out, content):
    shown(out, content)


@quick(100)
@given(name=st.sampled_from(sorted(WHOLE)), value=VALUES)
def test_any_value_for_any_field(out, name, value):
    shown(out, {**WHOLE, name: value})


@pytest.mark.parametrize("name", ["workload", "metric", "unit", "target_from", "cluster"])
def test_no_text_is_without_a_bound(out, name):
    (out / "advice.json").write_text(as_json({**WHOLE, name: "x" * 10_000}))
    with pytest.raises(UserError, match=f"{name} must have at most .* characters"):
        load_advice(out)
