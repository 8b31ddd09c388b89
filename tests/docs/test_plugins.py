"""The method in the documentation works as written."""

import re
from pathlib import Path

from istbench.conformance import check_method

PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"


def test_the_documented_method_keeps_the_contract_in_under_60_lines(tmp_path):
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL).group(1)
    assert len(code.splitlines()) < 60
    plugin = tmp_path / "gossip.py"
    plugin.write_text(code)
    outcomes = check_method("gossip", nodes=3, plugins=(str(plugin),))
    assert [outcome.outcome for outcome in outcomes] == ["holds"] * 6, outcomes
