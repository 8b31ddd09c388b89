"""Programs that a host runs to measure something."""

import io

import pytest

from istbench.launch.hosts.agent_program import Agent
from istbench.launch.hosts.remote_programs import answers_of

pytestmark = pytest.mark.processes

PROGRAM = """
import os, sys
print("a library says this first")
print(os.environ["OWN"]) if sys.argv[1] == "say" else sys.exit("no GPU here")
"""


@pytest.fixture
def agent(tmp_path, monkeypatch):
    (tmp_path / "measures.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return Agent(io.StringIO(), {})


def test_each_program_answers_in_its_last_line(agent):
    environments = [{"OWN": '{"one": 1}'}, {"OWN": "[2]"}]
    assert answers_of(agent, "measures", ["say"], environments, 60.0) == [{"one": 1}, [2]]
    for undo in agent.undo:
        undo()  # they have ended


def test_the_last_line_of_a_program_that_fails_is_the_reason(agent):
    with pytest.raises(OSError, match="^no GPU here$"):
        answers_of(agent, "measures", ["fail"], [{}], 60.0)
