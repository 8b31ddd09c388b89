"""`istbench.Task`: functions of a session as a task file."""

import functools
import math
from pathlib import Path

import pytest
from torch import nn

import istbench
from istbench.base.errors import UserError
from istbench.node.registry import load_workload


def in_session(text, **names):
    """The names that `text` defines, as a cell of a notebook does."""
    import linecache

    file = f"<cell {abs(hash(text))}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space = {"__name__": "__main__", **names}
    exec(compile(text, file, "exec"), space)
    return space


CELL = """
import torch
from torch import nn
from torch.nn import functional as F
from math import sqrt
from pathlib import Path

WIDTH, SHAPES, DTYPE, FOLDER = 3, {"in": (8, 4)}, torch.float32, Path("some/where")
SLOPE, FACTOR, OFFSET = 0.5, 2, 7
inner = F.leaky_relu
net = nn.Linear(1, 1)

def decorate(function):
    return function

class Base(nn.Module):
    scale = WIDTH
    acts = {"relu": lambda x: inner(x, SLOPE)}

    class Block:
        def forward(self, x):
            return x * FACTOR

    @property
    def level(self):
        return 1

    @level.setter
    def level(self, value):
        self.kept = value + OFFSET

class Net(Base):
    def __init__(self, width=WIDTH, dtype=DTYPE):
        super().__init__()
        self.net = nn.Linear(SHAPES["in"][0], int(sqrt(width * width)), dtype=dtype)

    @property
    def folder(self):
        return FOLDER

    def forward(self, x):
        return self.net(x)

def make():
    return Net()

@decorate
def samples(train: bool):
    return [(torch.zeros(4, 8), torch.zeros(4, WIDTH)) for _ in range(2)]

def loss(net, batch):
    x, y = batch
    return F.mse_loss(net(x), y)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_file_has_all_that_the_functions_use_and_nothing_else(here):
    cell = in_session(CELL)
    task = istbench.Task(model=cell["make"], data=cell["samples"], loss=cell["loss"], batch_size=4, targets=(0.5,))
    file = task.write()
    space = {"__name__": "task"}
    exec(compile(file.read_text(), str(file), "exec"), space)
    assert space["model"]().net.weight.shape == (3, 8)
    assert space["model"]().folder == Path("some/where")
    made = space["model"]()
    made.level = 1
    assert (made.kept, made.Block().forward(3), made.acts["relu"](space["torch"].tensor(-4.0))) == (8, 6, -2.0)
    assert (space["batch_size"], space["targets"]) == (4, (0.5,))
    assert "net = nn.Linear(1, 1)" not in file.read_text()  # a parameter of that name is no global
    assert space["loss"](space["model"](), space["data"](True)[0]).shape == ()
    assert load_workload("notebook_task", [str(file)]).targets == (0.5,)


def test_the_same_functions_make_the_same_file(here):
    texts = set()
    for _ in range(2):
        cell = in_session(CELL)
        texts.add(istbench.Task(model=cell["make"], data=cell["samples"], loss=cell["loss"]).source())
    assert len(texts) == 1


def test_a_file_of_the_user_is_never_overwritten(here):
    cell = in_session(CELL)
    Path("mine.py").write_text("x = 1\n")
    with pytest.raises(UserError, match=r"mine\.py is not from Task"):
        istbench.Task(model=cell["make"], data=cell["samples"], file="mine.py").write()
    assert Path("mine.py").read_text() == "x = 1\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("model = lambda: None", "Task.model is a lambda; write it with def"),
        (
            "def model():\n    return thing",
            "Task.model needs thing, a value of type object of this session: make it inside a function",
        ),
        (
            "def around(width):\n    def model():\n        return width\n    return model\nmodel = around(3)",
            "Task.model uses width of the function around model",
        ),
        ("def model():\n    return big", "Task.model needs big, a value of 20,002 characters"),
        (
            "def helper():\n    return thing\ndef model():\n    return helper()",
            "Task.model needs thing, a value of type object",
        ),
        ("import functools\nmodel = functools.partial(int, 3)", "Task.model needs model, a value of type partial"),
        ("model = 3", "Task.model is '3', no function"),
        (
            "import enum\nclass C(enum.IntEnum):\n    A = 1\nc = C.A\ndef model():\n    return c",
            "Task.model needs c, a value of type C of this session",
        ),
        (
            "import torch\ndef plain(): ...\nmodel = torch.no_grad()(plain)",
            "Task.model: plain wraps a function, not by a decorator",
        ),
        # A task file of these would train for five epochs.
        ("epochs = 5\ndef model():\n    return epochs", "Task.model uses another epochs than Task"),
        ("def evaluate(): ...\ndef model():\n    return evaluate()", "Task.model uses another evaluate than Task"),
    ],
)
def test_what_no_file_can_hold_is_named(text, why):
    cell = in_session(text, thing=object(), big="x" * 20_000)
    with pytest.raises(UserError, match=why):
        istbench.Task(model=cell["model"], data=cell["model"]).source()


DECORATED = """
import functools
import torch
from dataclasses import dataclass

width, far = 3, float("inf")

@dataclass
class Sizes:
    width: int = width

    def least(self):
        return min(self.width, far)

@functools.cache
def sizes():
    return Sizes()

@torch.no_grad()
def model():
    return sizes().least()
"""


def test_decorators_and_dataclasses_are_written_with_all_that_they_use():
    cell = in_session(DECORATED)
    space = {"__name__": "task"}
    exec(istbench.Task(model=cell["model"], data=cell["sizes"]).source(), space)
    assert space["model"]() == 3


def test_things_of_modules_are_imported():
    task = istbench.Task(model=functools.lru_cache, data=math.sqrt, loss=nn.functional.mse_loss)
    source = task.source()
    assert "from functools import lru_cache as model" in source
    assert "from math import sqrt as data" in source
    assert "from torch.nn.functional import mse_loss as loss" in source


def test_a_class_without_functions_is_found_in_its_cell(here):
    cell = in_session("class Sizes:\n    width = 3\n\ndef model():\n    return Sizes.width\n")
    assert "class Sizes:\n    width = 3" in istbench.Task(model=cell["model"], data=cell["model"]).source()
