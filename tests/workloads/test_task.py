"""Task files: functions become a workload, and each mistake is one line that names the file and the function."""

import itertools
import re

import pytest
import torch
from torch import nn

from istbench.base import plugin_code
from istbench.base.error_lines import error_line
from istbench.base.errors import UserError
from istbench.methods.base import materialise
from istbench.methods.ist import IndependentSubnetTraining
from istbench.methods.local_sgd import LocalSGD
from istbench.node.evaluate import calibrated, calibration_batches, evaluate
from istbench.node.model_proof import prove_model
from istbench.node.registry import build_method, build_workload, code_of, load_workload, plugin_names
from istbench.studies.conformance.of_tasks import the_loss
from istbench.workloads.batches import ShardedBatches
from istbench.workloads.contract import blank_model, checked_metrics
from istbench.workloads.neuron_groups.layout import build_subnet, part_of_subnet
from istbench.workloads.neuron_groups.partition import partition_units

WHOLE = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

batch_size = 4

def model():
    return nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))

def data(train):
    points = torch.arange(60.0).reshape(20, 3) / 30
    return TensorDataset(points, (points.sum(1) > 3).long())

def loss(model, batch):
    points, labels = batch
    return F.cross_entropy(model(points), labels)
"""

NUMBERS = itertools.count()


@pytest.fixture
def task(tmp_path):
    """Makes a workload of the code of a task file, with the text `old` replaced by `new`, `more` at the end."""

    def make(old="", new="", *, more="", code=WHOLE, opened=True):
        assert old in code
        path = tmp_path / f"mine{next(NUMBERS)}.py"
        path.write_text(code.replace(old, new) + more if old else code + more)
        workload = build_workload(str(path), {})
        if opened:
            workload.open(workload.prepare(None, tmp_path, lambda *_: None))
        return workload

    return make


def refusal(make, *args, **kwargs):
    """The line that refuses a file, without its name; the file is tried too."""
    with pytest.raises(UserError) as refused:
        make(*args, **kwargs).try_out()
    said = str(refused.value)
    assert "\n" not in said
    assert said.startswith("task file mine")
    return said.partition(".py")[2]


def built(workload, seed=0):
    model = blank_model(workload)
    return materialise(model, workload, seed, torch.device("cpu"))


def batch(workload, step=0, *, rank=0, world_size=1, seed=0):
    size = workload.batch_size
    deal = ShardedBatches(
        workload.train_size, size, rank=rank, world_size=world_size, seed=seed, in_turn=workload.in_turn
    )
    return workload.train_batch(deal.indices(step), deal.generator(step))


def test_a_file_of_functions_is_a_workload_named_like_the_file(task, tmp_path):
    workload = task()
    assert workload.name.startswith("mine")
    assert (workload.metric, workload.lower_is_better, workload.batch_size) == ("loss", True, 4)
    path = str(tmp_path / f"{workload.name}.py")
    assert load_workload(workload.name, [path]) is load_workload(path)
    assert plugin_names(tmp_path / f"{workload.name}.py", "workloads") == [workload.name]
    assert plugin_names(tmp_path / f"{workload.name}.py", "methods") == []
    assert len(code_of("workloads", path)) == 12
    workload.try_out()
    points, labels = batch(workload)[0].parts
    assert points.shape == (4, 3)
    assert labels.dtype == torch.int64
    metrics = workload.evaluate(built(workload).eval(), workload.test_batches())
    assert list(metrics) == ["loss"]


def test_one_seed_gives_the_model_of_the_users_constructors(task):
    workload = task()
    one, other, another = built(workload), built(workload), built(workload, seed=1)
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])
    assert not torch.equal(one[0].weight, another[0].weight)
    rows = torch.tensor([4, 1])
    model = blank_model(workload)
    assert torch.equal(workload.initial_rows(model, "0.weight", rows, 0), one[0].weight[rows])
    workload.task_model.release()
    assert torch.equal(workload.initial_rows(model, "3.bias", None, 1), another[3].bias)


MASKED = """

whole = model

def model():
    made = whole()
    made.register_buffer("mask", torch.full((2, 2), float("-inf")).triu(1))
    return made
"""


def test_nodes_compare_their_start_by_finite_values_alone(task):
    masked, bare = task(more=MASKED), task()
    masked.own_model(0), bare.own_model(0)
    assert masked.start_sums() == bare.start_sums()
    assert min(bare.start_sums()) > float("-inf")


OTHER_MODELS = {
    "compiled": "return torch.compile(whole()[0], backend='eager')",
    "gradients": "made = whole(); made(torch.ones(2, 3)).sum().backward(); return made",
}


@pytest.mark.parametrize("kind", OTHER_MODELS)
def test_a_model_may_be_compiled_and_begins_without_gradients(task, kind):
    workload = task(more=f"\n\nwhole = model\n\ndef model():\n    {OTHER_MODELS[kind]}\n")
    for planned in (True, False):
        assert workload.task_model.blank(planned=planned) is not None
    assert all(parameter.grad is None for parameter in built(workload).parameters())


def test_making_a_model_and_batches_leaves_random_numbers_of_training_alone(task):
    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    workload = task()
    built(workload)
    batch(workload)
    assert torch.equal(torch.rand(2), wanted)


def test_parameters_under_several_names_stay_one(task):
    layers = "nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3), nn.Linear(3, 2))"
    code = WHOLE[: WHOLE.index("def model")] + f"""
def model():
    net = {layers}
    net[1].weight = net[0].weight
    return net
""" + WHOLE[WHOLE.index("def data") :]  # fmt: skip
    workload = task(code=code)
    model = built(workload)
    assert model[0].weight is model[1].weight
    assert len(list(model.parameters())) == 4
    workload.try_out()


NEEDS_VALUES = """
    class Shifted(nn.Linear):
        def __init__(self):
            super().__init__(3, 2)
            self.by = torch.rand(2)
            self.first = self.by[0].item()

        def forward(self, x):
            return super().forward(x) + self.by
    return Shifted()
"""


def test_a_model_whose_constructor_needs_values_is_built_on_the_cpu(task):
    body = "    return nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))\n"
    workload = task(body, NEEDS_VALUES)
    model = blank_model(workload)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert not model.by.is_meta  # no parameter: it keeps its values
    workload.try_out()


STREAM = """
import torch
from torch import nn

opened = []

def model():
    return nn.Linear(2, 1)

def data(train):
    opened.append(train)
    print("reading")
    for number in range(5):
        yield {"x": torch.full((3, 2), float(number)), "more": [torch.rand(3, 1)]}

def loss(model, batch):
    return (model(batch["x"]) - batch["more"][0]).square().mean()
"""


def firsts(workload, steps, *, rank, world_size):
    return [int(batch(workload, step, rank=rank, world_size=world_size)[0].parts["x"][0, 0]) for step in steps]


def test_nodes_take_every_nth_batch_of_an_iterable_pass_after_pass(task, capsys):
    workload = task(code=STREAM)
    assert (workload.in_turn, workload.batch_size, workload.train_size) == (True, 3, 15)
    assert firsts(workload, range(5), rank=0, world_size=2) == [0, 2, 4, 1, 3]
    assert firsts(workload, range(5), rank=1, world_size=2) == [1, 3, 0, 2, 4]
    said = capsys.readouterr()
    assert said.out == ""
    assert "reading" in said.err


def test_a_plan_says_that_it_supposes_equal_batches(task):
    assert task(code=STREAM).expect(None, ()).endswith(", as if every batch had the 3 samples of the first")
    assert task(code=STREAM, more="samples = 3\n").expect(None, ()).endswith(".py")


def test_an_iterable_gives_the_same_batch_to_a_resumed_run(task):
    workload = task(code=STREAM)
    straight = [batch(workload, step, rank=1, world_size=2)[0] for step in range(6)]
    again = task(code=STREAM)
    for step in (5, 2, 2, 0):
        assert batch(again, step, rank=1, world_size=2)[0].equal(straight[step])
    noise = [part.parts["more"][0] for part in straight]
    assert not torch.equal(noise[0], noise[5])  # batch 1 of the first pass, and of the third
    assert not batch(again, 0, rank=1, world_size=2, seed=1)[0].equal(straight[0])


def test_data_is_called_once_to_open_it_and_once_for_each_further_pass(task, tmp_path):
    launcher = task(code=STREAM, opened=False)
    calls = launcher.file.function("data").__globals__["opened"]
    source = launcher.prepare(None, tmp_path, lambda *_: None)
    assert sorted(calls) == [False, False, True, True]  # an example, and the pass that counts the batches
    launcher.prepare(None, tmp_path, lambda *_: None)  # for another cell
    assert len(calls) == 4
    worker = task(code=STREAM, opened=False)
    calls = worker.file.function("data").__globals__["opened"]
    worker.open(source)
    worker.try_out()
    assert firsts(worker, range(5), rank=0, world_size=1) == [0, 1, 2, 3, 4]
    assert calls == [True, True]  # the size of a batch, and a pass
    for _ in range(2):
        assert len(list(worker.test_batches())) == 5
    assert calls == [True, True, False, False]


def test_a_stream_that_differs_each_time_has_no_fingerprint_of_its_content(task):
    assert task(code=STREAM).split(True).content
    assert not task("float(number)", "float(len(opened))", code=STREAM).split(True).content


@pytest.mark.parametrize(
    ("made", "steady"),
    [
        ("DataLoader(KNOWN, 2, shuffle=True)", True),
        ("DataLoader(KNOWN, 2, shuffle=True, generator=OWN)", True),
        ("[MANY[row] for row in numpy.random.default_rng().permutation(8000)[:8].reshape(4, 2)]", False),
    ],
)
def test_an_order_that_no_seed_decides_is_said(task, tmp_path, made, steady):
    more = f"""
import numpy
from torch.utils.data import DataLoader

OWN = torch.Generator()
MANY = TensorDataset(torch.arange(24000.0).reshape(8000, 3), torch.ones(8000).long())
KNOWN = TensorDataset(*MANY[:8])

def data(train):
    return {made}
"""
    one, other = (task("= 4", "= 2", more=more) for _ in range(2))
    assert (firsts_of(one) == firsts_of(other)) is steady
    note = one.prepare(None, tmp_path, lambda *_: None).note
    assert ("two passes of one seed differ" in note) is not steady


def firsts_of(workload):
    """The first values of the batches of two passes, with an evaluation between them."""
    seen = [batch(workload, step)[0].parts[0][:, 0].tolist() for step in range(4)]
    list(workload.test_batches())
    return [*seen, *(batch(workload, step)[0].parts[0][:, 0].tolist() for step in range(4, 8))]


def test_an_iterable_dataset_without_a_length_is_counted(task):
    more = """
from torch.utils.data import IterableDataset

class Points(IterableDataset):
    def __iter__(self):
        for number in range(10):
            yield torch.full((3,), float(number)), number % 2

def data(train):
    return Points()
"""
    workload = task(more=more)
    assert (workload.in_turn, workload.batch_size, workload.train_size) == (True, 4, 12)
    assert [len(part) for part, _ in workload.test_batches()] == [4, 4, 2]


def test_augmentation_of_a_dataset_follows_from_the_step(task):
    noisy = """
from torch.utils.data import Dataset
import random
import numpy

class Noisy(Dataset):
    def __len__(self):
        return 9

    def __getitem__(self, index):
        return torch.rand(3) + random.random() + numpy.random.rand(), index % 2

def data(train):
    return Noisy()
"""
    workload = task(more=noisy)
    one, other = (batch(workload, 3)[0] for _ in range(2))
    assert one.equal(other)
    assert not one.equal(batch(workload, 1)[0])
    assert not torch.equal(batch(workload, 0)[0].parts[0], batch(workload, 1)[0].parts[0])


def test_batches_of_any_structure_move_and_split(task):
    (parts, targets) = batch(task(code=STREAM))
    assert len(parts) == len(targets) == 3
    pieces = parts.chunk(2)
    assert [len(piece) for piece in pieces] == [len(piece) for piece in targets.chunk(2)] == [2, 1]
    assert pieces[1].parts["more"][0].shape == (1, 1)
    assert parts.to("cpu").equal(parts)


def test_settings_are_constants_or_attributes(task):
    more = """
data.batch_size = 5
targets = [0.5]
UNIT = "share"

def evaluate(model, batches):
    return {"top5_accuracy": 0.5}
"""
    workload = task("batch_size = 4\n", "epochs = 2\n", more=more)
    assert (workload.batch_size, workload.epochs, workload.targets) == (5, 2, (0.5,))
    assert (workload.metric, workload.lower_is_better, workload.unit) == ("top5_accuracy", False, "share")


GROUPS = """
def trained():
    net = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    net[1].running_var.copy_(torch.arange(6))
    return net

def neuron_groups(model):
    norm = [(f"1.{name}", 0) for name in ("weight", "bias", "running_mean", "running_var")]
    return {"hidden": [("0.weight", 0), ("0.bias", 0), *norm, ("3.weight", 1)]}
"""


def test_neuron_groups_are_places_by_name(task):
    workload = task(NET, "trained()", more=GROUPS)
    with torch.device("meta"):
        (group,) = workload.neuron_groups(workload.build_model())
    assert (group.name, group.size, len(group.slots)) == ("hidden", 6, 7)
    model = blank_model(workload)
    units = partition_units([group], 2, seed=0, round_index=0)
    assert build_subnet(model, [group], {"hidden": 3}, torch.device("cpu"))[1].running_var.shape == (3,)
    whole = workload.initial_buffer(model, "1.running_var")
    mine = part_of_subnet("1.running_var", whole, [group], units, 0)
    assert mine.tolist() == units["hidden"].units[0].tolist()  # of the subnet's own units, as model() set them


DIVIDING = """
class Dividing(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.scale = nn.Linear(3, 6), nn.Linear(6, 2), nn.Parameter(torch.ones(6))

    def forward(self, x):
        return self.down(torch.relu(self.up(x) / self.scale))
"""


def test_units_that_divide_by_their_own_parameter_are_dealt_but_do_not_stream(task):
    workload = task(NET, "Dividing()", more=DIVIDING)
    model = blank_model(workload)
    (group,) = workload.neuron_groups(model)
    assert {slot.tensor for slot in group.slots} == {"up.weight", "up.bias", "scale", "down.weight"}
    ist, streaming = (build_method(name, {"local_steps": 4}) for name in ("ist", "streaming_ist"))
    ist.check(ist.options, model, workload, 2)
    with pytest.raises(
        UserError, match="neuron group 'scale' cannot stream, since units in flight are zero: units"
    ):
        streaming.check(streaming.options, model, workload, 2)
    plain = task(NET, "nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2))")
    model = blank_model(plain)
    streaming.check(streaming.options, model, plain, 2)


SIZE, NET = "batch_size = 4", "nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))"
SET, LOSS = "TensorDataset(points, (points.sum(1) > 3).long())", "F.cross_entropy(model(points), labels)"
EVALUATE = "def evaluate(model, batches):\n    return "
DATA_OF = ", line 12, data: data(train=True)"
MISTAKES = [
    ("def model():", "def other():", " lacks def model(): returns a torch.nn.Module (docs/your-model.md)"),
    ("data(train)", "data()", ", line 12, data: too many positional arguments; it should be def data(train)"),
    ("def model():\n    return", "model =", ": model is Sequential( (0): Linear(in_features=3"),
    (f"return {NET}", "pass", ", line 9, model: returns None; it should return a torch.nn.Module"),
    (NET, f"{NET}.half()", ", line 9, model: 0.weight is torch.float16; it should be torch.float32; train in half"),
    (NET, f"{NET}.double()", ", line 9, model: 0.weight is torch.float64; it should be torch.float32"),
    (
        "nn.Linear(3, 6)",
        "type('Own', (nn.Linear,), {'get_extra_state': lambda self: {'a': 1}})(3, 6)",
        ", line 9, model: its state_dict() has {'a': 1} in 0._extra_state; keep it in a buffer",
    ),
    ("nn.Linear(3, 6)", "nn.LazyLinear(6)", ", line 9, model: 0.weight has no size before a first batch; give its"),
    ("nn.BatchNorm1d(6)", "nn.LazyBatchNorm1d(affine=False)", ", line 9, model: 1.running_mean has no size"),
    (NET, "nn.ParameterList([torch.ones(2) * 1j])", ", line 9, model: 0 is torch.complex64; it should be torch."),
    (NET, f"(net := {NET}, net.register_buffer('turns', torch.ones(2).cdouble()))[0]", ", line 9, model: turns is "
     "torch.complex128; no checkpoint keeps those, use another"),
    (NET, f"(net := {NET}, net.register_buffer('small', torch.ones(2).to(torch.float8_e8m0fnu)))[0]", ", line 9, "
     "model: small is torch.float8_e8m0fnu; no checkpoint keeps those"),
    (NET, f"{NET}.requires_grad_(False)", ", line 9, model: every parameter has requires_grad=False; one should"),
    (f"def model():\n    return {NET}", f"net = {NET}\n\ndef model():\n    return net", ", line 11, model: returns "
     "the same object again; build a new model in each call"),
    ("def model", "import functools\n\n@functools.cache\ndef model", ", line 11, model: returns the same object"),
    ("def model():\n    return nn.Sequential(nn.Linear(3, 6)",
     "first = nn.Linear(3, 6)\n\ndef model():\n    return nn.Sequential(first",
     ", line 11, model: returns the same module 0 again; build a new model in each call"),
    (NET, "nn.BatchNorm1d(6, affine=False)", ", line 9, model: returns a module without parameters; it has only "
     "buffers; it should return a torch.nn.Module to train"),
    (f"return {SET}", "pass", f"{DATA_OF} returns None; it should return a torch Dataset, or an"),
    (SET, "TensorDataset(points[:0])", f"{DATA_OF} returns a Dataset of length 0; it should have samples"),
    (SET, "[]", f"{DATA_OF} yields no batch; it should yield at least one"),
    (SET, "[(None, 'a')]", ", line 12, data: a batch of data(train=True) is (None, 'a'); it should be tensors in"),
    (SET, "[points[:0]]", ", line 12, data: a batch of data(train=True) has 0 samples: a tensor of shape (0, 3)"),
    ("points = torch", "exit(3) #", ", line 13, in data: calls exit(3); it should return"),
    (LOSS, "model(points)", ", line 16, loss: returns a Tensor of shape (4, 2) and type torch.float32; it should"),
    (LOSS, "1.5", ", line 16, loss: returns 1.5; it should return a scalar tensor"),
    (LOSS, f"{LOSS}.detach()", ", line 16, loss: returns a tensor without a gradient; compute it from model(...)"),
    (LOSS, f"{LOSS} * float('nan')", ", line 16, loss: returns nan on untrained weights; it should be finite"),
    (SIZE, "batch_size = 0", ": batch_size must be a whole number of at least 1, not 0"),
    (SIZE, "metric = 'accuracy'", ": metric is 'accuracy'; without evaluate(model, batches) istbench reports the"),
    (SIZE, f"{EVALUATE}compute()\n", ", line 7, evaluate: name the metric that it returns: write metric = \"acc"),
    (SIZE, f"@torch.no_grad()\n{EVALUATE}compute()\n", ", line 7, evaluate: name the metric that it returns"),
    (SIZE, f"{EVALUATE}{{'quality': 1}}\n", ", line 7, evaluate: write lower_is_better = True or False for its"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "said"), MISTAKES, ids=[new for _, new, _ in MISTAKES])
def test_a_mistake_is_one_line_that_names_the_function(task, old, new, said):
    assert refusal(task, old, new).startswith(said)


def test_places_of_a_neuron_group_that_are_none_are_refused(task):
    workload = task(more=GROUPS.replace('("0.weight", 0), ("0.bias", 0)', '"0.weight"'))
    with pytest.raises(UserError, match=r"neuron_groups: group 'hidden' is .*it should be a list of \(tensor, dim"):
        workload.neuron_groups(workload.build_model())


def test_an_error_of_the_file_is_shown_with_its_line(task):
    with pytest.raises(ZeroDivisionError) as raised:
        task("points = torch.arange", "1 / 0\n    points = torch.arange")
    line = error_line(raised.value)
    assert line.startswith("task file mine")
    assert line.endswith(".py, line 13, in data: ZeroDivisionError: division by zero")
    with pytest.raises(RuntimeError) as raised:
        task("nn.Linear(3, 6)", "nn.Linear(4, 6)").try_out()
    assert (
        error_line(raised.value).partition(".py")[2].startswith(", line 18, in loss: RuntimeError: mat1 and mat2")
    )


def test_an_error_of_a_library_names_the_function(task, tmp_path):
    folders = f"""
from torchvision.datasets import ImageFolder

def data(train):
    return ImageFolder({str(tmp_path / "images")!r})
"""
    (tmp_path / "images" / "cats").mkdir(parents=True)
    (tmp_path / "images" / "cats" / "1.png").write_bytes(b"no image")
    with pytest.raises(OSError, match="cannot identify") as raised:
        task(more=folders)
    assert ".py, line 22, data: UnidentifiedImageError: cannot identify" in error_line(raised.value)
    samples = "\ndef data(train):\n    return TensorSet()\n" + (
        "class TensorSet(list, torch.utils.data.Dataset):\n"
        "    __len__ = lambda self: 8\n    __getitem__ = lambda self, at: torch.zeros(at)\n"
    )
    with pytest.raises(RuntimeError, match="stack expects") as raised:
        task(more=samples.replace("list, ", ""))
    assert ", data, joining samples by torch's default_collate: RuntimeError: stack" in error_line(raised.value)


HEAD = "head = nn.Linear(2, 2)\n\ndef model"


@pytest.mark.parametrize(("used", "fits"), [
    ("head(model(points))", False),
    ("model(points) @ head.weight", False),
    ("model(points) + head(points[:, :2]).detach()", True),
    ("model(points.requires_grad_())", True),
])  # fmt: skip
def test_a_loss_uses_no_parameter_that_nobody_trains(task, used, fits):
    code = WHOLE.replace("def model", HEAD).replace("cross_entropy(model(points)", f"cross_entropy({used}")
    if fits:
        task(code=code).try_out()
        return
    said = refusal(task, code=code)
    assert "loss: uses a parameter of shape (2, 2) that model() does not return, so nobody would train it" in said


WORDS = """
import torch
from torch import nn
from torch.nn import functional as F

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(9, 4, sparse=True), nn.Linear(4, 9)

    def forward(self, x):
        return self.head(self.words(x))

def model():
    return Words()

def data(train):
    return [torch.arange(8).reshape(2, 4)] * 3

def loss(model, batch):
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
"""


def test_a_sparse_embedding_gets_dense_gradients_and_a_function_of_sparse_ones_is_refused(task):
    workload = task(code=WORDS)
    workload.try_out()
    workload.loss(model := workload.own_model(0), batch(workload)).backward()
    assert model.words.weight.grad.layout == torch.strided
    prove_model(workload, LocalSGD)
    said = refusal(task, "self.words(x)", "F.embedding(x, self.words.weight, sparse=True)", code=WORDS)
    place = ", line 14, model: forward gives words.weight a sparse gradient"
    assert said == f"{place}; leave sparse=True out of its functions"


def test_a_model_without_a_loss_in_evaluation_names_its_line_and_the_way_out(task):
    boxes = """
class Detector(nn.Linear):
    def forward(self, x):
        return {"loss": super().forward(x).mean()} if self.training else [{"boxes": x}]

def model():
    return Detector(3, 1)

def loss(model, batch):
    return sum(model(batch[0]).values())
"""
    workload = task(more=boxes)
    workload.try_out()
    with pytest.raises(UserError) as refused:
        evaluate(workload.own_model(0), workload, torch.device("cpu"))
    said = "line 28, in loss: AttributeError: 'list' object has no attribute 'values', in evaluation mode; write "
    assert str(refused.value) == f"{workload.in_errors}, {said}evaluate(model, batches)"


PENALTY = """
def loss(model, batch):
    points, labels = batch
    points = points.clone().requires_grad_()
    scores = model(points)
    slope = torch.autograd.grad(scores.sum(), points, create_graph=True)[0]
    return F.cross_entropy(scores, labels) + slope.square().mean()
"""


def test_a_loss_may_take_gradients_of_its_own_where_nobody_trains(task):
    workload, plain, device = task(more=PENALTY), task(), torch.device("cpu")
    workload.try_out()
    model = built(workload)
    means = []
    for one in (workload, plain):
        with calibrated(model, one, 0, device):
            means.append(model.get_buffer("1.running_mean").clone())
    torch.testing.assert_close(*means)
    assert evaluate(model, workload, device)["loss"] > evaluate(model, plain, device)["loss"]
    written = plain.found_groups().groups
    assert task(more=PENALTY + "\ndef neuron_groups(model):\n    return []\n").prove_groups(written) == ""


def test_attributes_that_forward_changes_are_known(task):
    counting = """
class Counting(nn.Linear):
    calls, seen = 0, None

    def forward(self, x):
        self.calls, self.seen = self.calls + 1, x
        return super().forward(x)

def model():
    model = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), Counting(6, 2))
    model[3].calls = 0
    return model
"""
    said = "; forward changes 3.calls, which no checkpoint holds; use a buffer"
    assert the_loss(task(more=counting)).endswith(said)
    assert task().trial() == ([], [])


def test_a_model_of_its_own_loss_needs_no_loss(task):
    code = STREAM[: STREAM.index("def loss")].replace("return nn.Linear(2, 1)", "return Own()").replace(
        "opened =", """
class Own(nn.Linear):
    def __init__(self):
        super().__init__(2, 1)

    def forward(self, batch):
        return super().forward(batch["x"]).mean()

opened =""")  # fmt: skip
    task(code=code).try_out()
    with pytest.raises(
        UserError, match=r"model\(batch\) returns a Tensor of shape .*, or write def loss\(model, batch"
    ):
        task(code=code.replace(".mean()", "")).try_out()
    with pytest.raises(UserError, match=r"not dict; without def loss.*, the model gets .* a dict: write"):
        task(code=code.replace('batch["x"]', "batch")).try_out()


OPTIMIZERS = {
    "torch.optim.Adam(parameters, amsgrad=True)": None,
    "None": "optimizer: returns None; it should return a torch.optim.Optimizer alone",
    "(torch.optim.Adam(parameters), 1)": "should return a torch.optim.Optimizer alone; for a learning-rate",
    "scheduled(parameters)": "optimizer: has a learning-rate scheduler",
    "wrapped(parameters)": "optimizer: its step is wrapped by other code",
    "torch.optim.SGD(parameters[:1], lr=0.1)": "optimizer: trains 1 tensors, not the 6 parameters",
    "torch.optim.LBFGS(parameters)": "optimizer: LBFGS computes the loss several times",
    "torch.optim.SparseAdam(parameters)": "optimizer: SparseAdam takes sparse gradients alone",
    "torch.optim.SGD(parameters, lr='high')": "",
}


@pytest.mark.parametrize(("returned", "said"), OPTIMIZERS.items())
def test_an_optimizer_of_the_file_is_taken_or_refused(task, returned, said):
    more = f"""
def scheduled(parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    optimizer.schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    return optimizer

def wrapped(parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    optimizer.step = lambda: None
    return optimizer

def optimizer(parameters):
    return {returned}
"""
    workload = task(more=more)
    assert workload.optimizer
    if said is None:
        workload.try_out()
    elif said:
        with pytest.raises(UserError, match=r"mine\d+\.py, line 30, " + said if said.startswith("opt") else said):
            workload.try_out()
    else:
        with pytest.raises(Exception, match="high|str") as raised:
            workload.try_out()
        assert "optimizer" in (error_line(raised.value) or str(raised.value))


def test_files_beside_a_task_file_can_be_imported(tmp_path):
    (tmp_path / "my_net_beside.py").write_text("from torch import nn\nnet = lambda: nn.Linear(3, 2)\n")
    code = "import my_net_beside\n" + WHOLE.replace("return nn.Seq", "return my_net_beside.net() #")
    (tmp_path / "beside.py").write_text(code)
    assert isinstance(built(build_workload(str(tmp_path / "beside.py"), {})), nn.Linear)


def test_a_file_named_like_a_workload_of_istbench_is_refused(tmp_path):
    (tmp_path / "toy.py").write_text(WHOLE)
    with pytest.raises(UserError, match=r"toy\.py: istbench has a workload 'toy' of its own; rename the file"):
        load_workload(str(tmp_path / "toy.py"))
    with pytest.raises(UserError, match=r"no file .*none\.py"):
        load_workload(str(tmp_path / "none.py"))


def test_a_file_in_a_directory_that_no_one_may_see_is_refused(locked):
    with pytest.raises(UserError, match=f"no file {locked}/mine.py; give a Python file"):
        load_workload(str(locked / "mine.py"))


def test_files_whose_paths_look_alike_are_two_modules(tmp_path):
    paths = [tmp_path / "a" / "b_c.py", tmp_path / "a_b" / "c.py"]
    for path, size in zip(paths, (3, 5), strict=True):
        path.parent.mkdir()
        path.write_text(WHOLE.replace("batch_size = 4", f"batch_size = {size}"))
    found = [load_workload(str(path)) for path in paths]
    assert [(kind.name, kind.file.settings.batch_size) for kind in found] == [("b_c", 3), ("c", 5)]


@pytest.mark.parametrize("returned", ["None", "{}", "[]", "5"])
def test_groups_of_nothing_are_refused(task, returned):
    workload = task(more=f"\ndef neuron_groups(model):\n    return {returned}\n")
    with pytest.raises(UserError, match=f"neuron_groups: returns {re.escape(returned)}; it should return"):
        workload.neuron_groups(workload.build_model())


def test_metrics_of_another_kind_name_the_file(task):
    workload = task(more='\ndef evaluate(model, batches):\n    return 0.5\n\nmetric = "accuracy"\n')
    with pytest.raises(UserError, match=r"mine\d+\.py: evaluate must return a dictionary of metrics, not 0.5$"):
        checked_metrics(workload, workload.evaluate(None, iter(())))


ENDLESS = """
import time

def waits():
    ends = time.monotonic() + 0.5
    while time.monotonic() < ends:
        pass
"""
WAITING = [
    (STREAM, "    for number in range(5):", "    waits()\n    for number in range(5):", "data"),
    (STREAM, "    return (model", "    waits()\n    return (model", "loss"),
    (WHOLE, "    points, labels = batch\n", "    points, labels = batch\n    waits()\n", "loss"),
]


@pytest.mark.parametrize(("code", "old", "new", "name"), WAITING)
def test_code_that_does_not_end_is_named_after_a_while(task, monkeypatch, capsys, code, old, new, name):
    monkeypatch.setattr(plugin_code, "_SLOW_S", 0.1)
    workload = task(old, new, code=code, more=ENDLESS)
    workload.try_out()
    said = capsys.readouterr().err
    line = f"istbench: {name} of task file {workload.name}.py takes more than 0.1 s; Ctrl-C ends it\n"
    assert line in said
    assert "istbench: model" not in said


def test_a_batch_size_other_than_that_of_the_batches_is_refused(task):
    said = r"data: data\(train=True\) yields batches of 3 samples, but batch_size is 64; leave batch_size out"
    with pytest.raises(UserError, match=said):
        task("opened = []", "opened, batch_size = [], 64", code=STREAM)
    larger = task(
        "for number", "batch = 3 if train else 5\n    for number", code=STREAM.replace("(3, ", "(batch, ")
    )
    assert [larger.split(train).count for train in (True, False)] == [15, 25]
    assert task("opened = []", "opened, batch_size = [], 3", code=STREAM).batch_size == 3


def test_a_loss_may_rely_on_the_batch_size(task):
    workload = task(
        "points, labels = batch",
        "points, labels = batch[0] + torch.zeros(batch_size, 1), batch[1]",
        code=WHOLE.replace("batch_size = 4", "batch_size = 16"),
    )
    workload.try_out()
    assert [group.size for group in workload.found_groups().groups] == [6]


POPS = """
from torch.utils.data import DataLoader, Dataset

class Named(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, place):
        return {"points": torch.full((3,), place / 40), "labels": place % 2}

def loss(model, batch):
    labels = batch.pop("labels")
    return F.cross_entropy(model(batch["points"].sub_(1.0)), labels)

def data(train):
    return """


@pytest.mark.parametrize("returned", ["Named()", "DataLoader(Named(), batch_size)"])
def test_a_loss_may_change_its_batch(task, returned):
    workload = task("batch_size = 4", "batch_size = 16", more=POPS + returned)
    workload.try_out()
    assert [group.size for group in workload.found_groups().groups] == [6]
    prove_model(workload, IndependentSubnetTraining)
    parts = batch(workload)[0].parts
    assert sorted(parts) == ["labels", "points"]
    assert parts["points"].min() >= 0


def test_a_model_in_evaluation_mode_trains(task):
    workload = task("    return nn.Sequential(", "    return nn.Sequential(nn.BatchNorm1d(3).eval(), ")
    model = workload.own_model(0)
    assert [one.training for one in (model, model[0], model[2])] == [True, False, True]
    workload = task("nn.Linear(6, 2))", "nn.Linear(6, 2)).eval()")
    assert all(one.training for one in workload.own_model(0).modules())


def test_an_evaluation_takes_no_more_samples_at_once_than_a_step(task):
    workload = task()
    with calibrated(built(workload), workload, 0, torch.device("cpu")):
        pass
    sizes = [len(points) for points, _ in calibration_batches(workload, 0, 2048, workload.evaluated_at_once)]
    assert sizes == [4] * 5


def test_written_groups_are_proved_once(task, monkeypatch):
    workload = task(NET, "trained()", more=GROUPS)
    model = blank_model(workload)
    groups = workload.neuron_groups(model)
    assert workload.prove_groups(groups) == ""
    monkeypatch.setattr(workload.task_model, "built", None)
    assert workload.prove_groups(groups) == ""


def test_a_pass_that_failed_begins_anew(task):
    code = STREAM.replace("def data(train):\n", "def data(train):\n    yield None\n")
    for _ in range(2):
        with pytest.raises(UserError, match=r"a batch of data\(train=True\) is None"):
            task(code=code).split(True).example(1)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("def batch_size(): return 4", "batch_size is a function; it should be a constant"),
        ("class epochs: pass", "epochs is a function; it should be a constant"),
        ("lower_is_better = print", "lower_is_better is a function; it should be a constant"),
        ("BATCH_SIZE = 'x'", "BATCH_SIZE must be a whole number, not 'x'"),
        ("BATCH_SIZE = 5\nbatch_size = 6", "batch_size and BATCH_SIZE differ; leave one of them"),
        ("batchsize = 5", "batchsize is no setting; write batch_size"),
        ("Epochs = 5", "Epochs is no setting; write epochs"),
        ("targets = [0.5, 'x']", "targets must be a number, not 'x'"),
        ("targets = torch.tensor([[0.5]])", "targets must be a number, not [0.5]"),
        ("targets = 'high'", "targets must be a list, not 'high'"),
        ("def evalute(model, batches): return {}", "line 20: evalute is no function of a task; write evaluate"),
        ("def optimiser(parameters): return 1", "line 20: optimiser is no function of a task; write optimizer"),
    ],
)
def test_a_setting_of_another_kind_or_spelling_is_refused(task, more, said):
    line = refusal(task, more=f"\n{more}\n")
    assert line.lstrip(", :").startswith(said)


@pytest.mark.parametrize(
    ("more", "name", "value"),
    [
        ("targets = 0.5", "targets", (0.5,)),
        ("targets = torch.tensor([0.25, 0.5])", "targets", (0.25, 0.5)),
        ("targets = torch.arange(1, 3).numpy()", "targets", (1.0, 2.0)),
        ("BATCH_SIZE = batch_size = torch.tensor(5)", "batch_size", 5),
        ("samples = None\nunit = None", "samples", None),
        ("def targets(batch): return batch[1]", "targets", ()),
        ("import random as metric", "metric", "loss"),
        ("lr = 'fast'\nunits = 64\nclass Targets: pass", "targets", ()),
        ("def lost(model, batch, more): return 1\ndef sample(batch): return 1", "metric", "loss"),
    ],
)
def test_settings_of_other_kinds_are_used_and_other_names_are_the_users_own(task, more, name, value):
    assert getattr(task(more=f"\n{more}\n").file.settings, name) == value
