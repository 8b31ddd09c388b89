"""The notebook of the documentation runs as it stands."""

import json
import linecache
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs/notebook.ipynb"


@pytest.mark.processes
def test_the_notebook_goes_from_a_model_to_an_answer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    space = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        if cell["cell_type"] != "code":
            continue
        text = "".join(cell["source"])
        file = f"<cell {number}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # as a notebook does
        exec(compile(text, file, "exec"), space)
    assert len(space["results"].runs) == 4
    assert (space["results"].runs.status == "done").all()
    assert set(space["winners"].winner) == {"local_sgd"}
    assert space["slow"].answer().startswith("local_sgd on 2 nodes is the first")
    assert Path("notebook_task.py").is_file()
    assert Path("page.html").is_file()
