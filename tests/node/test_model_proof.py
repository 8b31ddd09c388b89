"""The user's own model object trains, or the method is refused by the name of the loss."""

import itertools
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from istbench.base.errors import UserError
from istbench.launch.processes.on_nodes import on_nodes
from istbench.methods.data_parallel import DataParallel, Replica
from istbench.methods.flat import BufferPlaces
from istbench.methods.fsdp import FullySharded
from istbench.methods.ist import IndependentSubnetTraining
from istbench.methods.local_sgd import LocalSGD
from istbench.methods.noloco import NoLoCo
from istbench.methods.p3 import P3
from istbench.node.evaluate import evaluate
from istbench.node.full_model import full_model
from istbench.node.model_proof import prove_model
from istbench.node.registry import build_workload
from istbench.studies.conformance.training import assembled, set_up, train
from istbench.workloads.batches import ShardedBatches

FILE = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

batch_size = 16
CALLS = []

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 12), nn.Linear(12, 6)
        {made}

    def forward(self, x):
        h = self.first(x).relu()
        return self.second(h){added}

def model():
    net = Net()
    {changed}
    return net

def data(train):
    x = torch.rand(64, 6, generator=torch.Generator().manual_seed(int(train)))
    return TensorDataset(x, x.sin())

def loss(model, batch):
    return F.mse_loss(model(batch[0]), batch[1])
"""
KEPT = {
    "plain": {},
    "batch norm": {"made": "self.norm = nn.BatchNorm1d(6)", "added": " + self.norm(x)"},
    "fragile": {"made": "self.scale = nn.Parameter(torch.tensor(0.1))", "added": " * self.scale.log().exp()"},
    "hook": {"changed": "net.first.weight.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))"},
    "hook after": {
        "changed": "net.first.weight.register_post_accumulate_grad_hook("
        "lambda own: setattr(own, 'grad', own.grad.clamp(-1e-3, 1e-3)))"
    },
    "attribute": {
        "changed": "net.first.weight.times = 3.0",
        "added": " * getattr(self.first.weight, 'times', 1.0)",
    },
    "list": {"made": "self.all = [self.first.weight]", "added": " + self.all[0].square().sum()"},
    "closure": {
        "changed": "w = net.first.weight; net.register_forward_hook(lambda m, i, out: out + w.sum())",
    },
}
OWN_BUFFER = {"made": "self.register_buffer('b', torch.ones(6).requires_grad_())", "added": " + self.b.detach()"}
# Its forward pass moves a frozen part after the trained one.
MOVING = {
    "made": "self.slow = nn.Linear(6, 12).requires_grad_(False)",
    "added": " + (self.slow.weight.lerp_(self.first.weight.detach(), 0.3 * self.training), self.slow(x)[:, :6])[1]",
}
# What moving a tensor loses too.
TIED = {
    "tied by data": {"changed": "net.second.weight.data = net.first.weight.data.T"},
    "view": {"changed": "net.view = net.first.weight.detach()[0]", "added": " + self.view.sum()"},
    "buffer": {"made": "self.register_buffer('b', self.first.weight.detach()[:, 0])", "added": " + self.b.sum()"},
}
NAMED = {
    "hook": "a hook on first.weight",
    "hook after": "a hook on first.weight",
    "attribute": "the attribute times of first.weight",
    "list": "past the module",
    "tied by data": "memory that",
    "buffer": "memory that",
}
NUMBERS = itertools.count()


# What forward leaves in the module, and the methods that would lose it.
REBUILT = (IndependentSubnetTraining, FullySharded)
LEFT = {
    "attribute": (
        {"made": "self.k = 1.0", "added": " * (self.training and setattr(self, 'k', 1.1 * self.k), self.k)[1]"},
        REBUILT,
        "another loss after training, because of the attribute k; use a buffer",
    ),
    "new buffer": (
        {"made": "self.register_buffer('m', None)", "added": " + (setattr(self, 'm', x.mean(0)), self.m)[1]"},
        REBUILT,
        "forward makes buffer m",
    ),
    "larger buffer": (
        {
            "made": "self.register_buffer('m', torch.ones(1))",
            "added": " * (setattr(self, 'm', torch.cat([self.m, self.m])), self.m.mean())[1]",
        },
        REBUILT,
        "forward changes the shape of buffer m",
    ),
    "bound": (
        {"added": " + 0 * self.first.weight.data.clamp_(-0.2, 0.2).sum()"},
        (FullySharded,),
        "forward changes the values of first.weight",
    ),
    "frozen": (MOVING, (FullySharded,), "forward changes the values of slow.weight"),
    "other memory": (
        {"added": " + (setattr(self.first.weight, 'data', 0.9 * self.first.weight.data), 0)[1]"},
        (*REBUILT, LocalSGD, NoLoCo),
        "first.weight",
    ),
    "counter": (
        {
            "made": "self.register_buffer('n', torch.zeros(()))",
            "added": " * (self.n.add_(float(self.training)), self.n)[1]",
        },
        (),
        "",
    ),
}


@pytest.fixture
def task(tmp_path):
    def make(parts):
        path = tmp_path / f"own{next(NUMBERS)}.py"
        path.write_text(FILE.format(**{"made": "pass", "added": "", "changed": "pass", **parts}))
        workload = build_workload(str(path), {})
        workload.open(workload.prepare(None, tmp_path, lambda *_: None))
        return workload

    return make


@pytest.mark.parametrize("kind", [*KEPT, *TIED])
@pytest.mark.parametrize("method", [DataParallel, LocalSGD, NoLoCo, IndependentSubnetTraining])
def test_a_method_that_would_lose_what_belongs_to_the_model_is_refused(task, kind, method):
    sound = ("plain", "batch norm", "fragile")
    lost = {
        DataParallel: (),
        LocalSGD: TIED,
        NoLoCo: (*TIED, "closure", "attribute"),
        IndependentSubnetTraining: [kind for kind in (*KEPT, *TIED) if kind not in sound],
    }
    workload = task({**KEPT, **TIED}[kind])
    if kind not in lost[method]:
        prove_model(workload, method)
        return
    with pytest.raises(UserError, match=f"{method.name} would train another model than model") as refused:
        prove_model(workload, method)
    assert NAMED.get(kind, "") in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", LEFT)
@pytest.mark.parametrize("method", [DataParallel, LocalSGD, NoLoCo, IndependentSubnetTraining, FullySharded])
def test_a_method_that_would_lose_what_forward_leaves_is_refused(task, kind, method):
    parts, losing, named = LEFT[kind]
    workload = task(parts)
    if method not in losing:
        prove_model(workload, method)
        return
    with pytest.raises(UserError, match=f"{method.name} would train another model than model.*{named}"):
        prove_model(workload, method)


@pytest.mark.parametrize("method", [LocalSGD, IndependentSubnetTraining])
def test_nodes_average_no_frozen_parameter_that_forward_changes(task, method):
    workload = task(MOVING)
    prove_model(workload, method)
    prove_model(workload, DataParallel, nodes=2)
    with pytest.raises(UserError, match=r"forward changes the frozen slow.weight, .*make it a buffer"):
        prove_model(workload, method, nodes=2)


@pytest.mark.parametrize("way", ["net.first = torch.compile(net.first, ", "net.compile("])
def test_a_compiled_model_is_refused_by_a_method_that_waits_inside_a_forward_pass(task, way):
    with pytest.raises(UserError, match="p3 waits .* so torch cannot compile it; return the model before"):
        prove_model(task({"changed": f"{way}backend='eager')"}), P3)


@pytest.mark.parametrize("method", [DataParallel, LocalSGD, FullySharded, P3])
def test_nodes_that_average_gradients_alone_have_no_embedding_with_a_largest_norm(task, method):
    workload = task({"made": "self.rows = nn.Embedding(9, 6, max_norm=0.5)", "added": " + self.rows.weight.sum()"})
    if method is LocalSGD:
        prove_model(workload, method, nodes=2)
        return
    with pytest.raises(UserError, match=f"rows has max_norm, .*and nodes of {method.name} would train different"):
        prove_model(workload, method, nodes=2)
    prove_model(workload, method, nodes=1)


@pytest.mark.parametrize("method", [LocalSGD, DataParallel])
def test_nodes_average_no_buffer_whose_sum_overflows(task, method):
    least = "self.masked = nn.Buffer(torch.tensor([torch.finfo(torch.float32).min, -torch.inf]))"
    workload = task({"made": least, "added": " + 0 * self.masked[0].clamp(-1)"})
    if method is DataParallel:  # which sends gradients alone
        prove_model(workload, method, nodes=2)
        return
    with pytest.raises(UserError, match="buffer masked has values of which 2 nodes can make no mean, .* by ddp"):
        prove_model(workload, method, nodes=2)
    prove_model(workload, method, nodes=1)


def test_a_loss_that_counts_its_calls_is_proved(task):
    prove_model(task({"added": " + (CALLS.append(1) or len(CALLS))"}), LocalSGD)


def test_a_loss_with_other_random_numbers_cannot_be_proved(task):
    workload = task({"added": " + __import__('os').urandom(1)[0]"})
    with pytest.raises(UserError, match="nothing is proved"):
        prove_model(workload, LocalSGD)


def node_trained(fabric, path, method):
    workload = build_workload(path, {})
    workload.open(workload.prepare(None, None, lambda *_: None))
    built = set_up(fabric, workload, method, {"optimizer": "sgd", "lr": 0.1})
    train(fabric, workload, built, 0, 20)
    model = assembled(fabric, built)
    return [own.detach().flatten().tolist() for own in model.parameters()]


def plain_loop(workload):
    """The loop that the user would write."""
    model = workload.own_model(0).train()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = ShardedBatches(workload.train_size, workload.batch_size, rank=0, world_size=1, seed=0)
    for step in range(20):
        inputs, _ = workload.train_batch(batches.indices(step), batches.generator(step))
        x, y = inputs.parts
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    return [own.detach().flatten().tolist() for own in model.parameters()]


SPECTRAL = {"spectral hook": "nn.utils", "spectral": "nn.utils.parametrizations"}


def spectral(task, kind):
    name = SPECTRAL[kind]
    return task({"made": f"self.first = {name}.spectral_norm(self.first)"})


@pytest.mark.processes
@pytest.mark.parametrize("kind", SPECTRAL)
@pytest.mark.parametrize("method", ["ddp", "local_sgd"])
def test_one_node_trains_a_spectral_normalisation_as_a_plain_loop_to_the_last_bit(task, tmp_path, kind, method):
    workload = spectral(task, kind)
    (found,) = on_nodes(node_trained, 1, str(tmp_path / workload.file.name), method)
    assert found == plain_loop(workload)


@pytest.mark.processes
@pytest.mark.parametrize("kind", SPECTRAL)
def test_nodes_average_no_vectors_of_a_spectral_normalisation(task, tmp_path, kind):
    workload = spectral(task, kind)
    first, second = on_nodes(node_vectors, 2, str(tmp_path / workload.file.name))
    assert first["weights"] == second["weights"]
    for own, other in zip(first["vectors"], second["vectors"], strict=True):
        assert own != other
        assert sum(value**2 for value in own) == pytest.approx(1, abs=1e-6)


def node_vectors(fabric, path):
    workload = build_workload(path, {})
    workload.open(workload.prepare(None, None, lambda *_: None))
    built = set_up(fabric, workload, "local_sgd", {"local_steps": 5, "lr": 0.5})
    train(fabric, workload, built, 0, 5)
    state = built.state_dict()["model"]
    vectors = [name for name in state if name.endswith(("_u", "_v"))]
    assert len(vectors) == 2
    assert not any(built.is_shared(("model", name)) for name in vectors)
    weights = [value.tolist() for name, value in state.items() if name not in vectors]
    return {"weights": weights, "vectors": [state[name].tolist() for name in vectors]}


@pytest.mark.processes
@pytest.mark.parametrize(
    ("kind", "method"),
    [("hook", "ddp"), ("hook", "local_sgd"), ("tied by data", "ddp"), ("own buffer", "ddp"), ("moving", "ddp")],
)
def test_the_object_that_trains_is_that_of_the_user(task, tmp_path, kind, method):
    workload = task({**KEPT, **TIED, "own buffer": OWN_BUFFER, "moving": MOVING}[kind])
    (found,) = on_nodes(node_trained, 1, str(tmp_path / workload.file.name), method)
    for ours, theirs in zip(found, plain_loop(workload), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-6)


REPLACED = {
    "made": "self.register_buffer('m', torch.ones(6))",
    "added": " - (self.training and setattr(self, 'm', 0.9 * self.m + x.mean(0)), self.m)[1]",
}


@pytest.mark.processes
def test_nodes_average_a_buffer_that_forward_replaces(task, tmp_path):
    workload = task(REPLACED)
    first, second = on_nodes(node_buffers, 2, str(tmp_path / workload.file.name))
    assert first == second
    assert all(own[0] > 3 for own in first)


def node_buffers(fabric, path):
    workload = build_workload(path, {})
    workload.open(workload.prepare(None, None, lambda *_: None))
    found = []
    for method in ("local_sgd", "diloco", "ist"):
        built = set_up(fabric, workload, method, {"local_steps": 5})
        train(fabric, workload, built, 0, 10)
        state = built.state_dict()
        found.append((state["subnet"] if "subnet" in state else state["model"])["m"].tolist())
    return found


def test_a_buffer_that_changes_its_shape_is_refused():
    module = torch.nn.Module()
    module.register_buffer("m", torch.zeros(2))
    places = BufferPlaces(module)
    module.m = torch.ones(2)
    places.refill()
    assert module.m.tolist() == [1, 1]
    module.m = torch.ones(3)
    with pytest.raises(UserError, match="buffer m of Module gets another shape or type"):
        places.refill()


def test_a_parameter_that_thaws_is_refused_at_the_next_evaluation(task):
    workload = task({"changed": "net.first.bias.requires_grad_(False)"})
    model = workload.own_model(0)
    with full_model(Whole(model), workload, Alone(), 0) as whole:
        assert "loss" in whole.metrics()
        model.first.bias.requires_grad_(True)
        with pytest.raises(UserError, match="first.bias has requires_grad=False in model.. and no longer"):
            whole.metrics()


def test_an_evaluation_leaves_the_model_of_the_user_as_it_is(task):
    changes = " * (setattr(self, 'k', 2.0), self.first.bias.data.add_(1))[1].sum()"
    workload = task({"made": "self.k = 1.0", "added": changes})
    own = workload.own_model(0)
    before = own.first.bias.tolist()
    evaluate(own, workload, torch.device("cpu"))
    assert (own.k, own.first.bias.tolist()) == (1.0, before)


def test_a_replica_names_the_way_to_a_part_of_its_model():
    replica = Replica.__new__(Replica)
    torch.nn.Module.__init__(replica)
    replica.module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    with pytest.raises(
        AttributeError, match=r"ddp and zero pass .* call model\(...\) alone, or read model.module.append"
    ):
        replica.append(torch.nn.ReLU())
    assert not hasattr(replica, "nothing")


OUTSIDE = {
    "penalty": "    x, y = batch[0].clone().requires_grad_(), batch[1]\n    out = model(x)\n"
    "    return out.sum() + torch.autograd.grad(out.sum(), x, create_graph=True)[0].square().sum()",
    "before": "    penalty = sum(own.square().sum() for own in model.parameters())\n"
    "    return penalty + F.mse_loss(model(batch[0]), batch[1])",
}


@pytest.mark.processes
def test_a_loss_that_reads_cut_parameters_names_the_way_out(tmp_path):
    paths = []
    for kind, loss in OUTSIDE.items():
        text = FILE.format(made="pass", added="", changed="pass")
        (tmp_path / f"{kind}.py").write_text(text[: text.index("    return F.mse_loss")] + loss)
        paths.append(str(tmp_path / f"{kind}.py"))
    (lines,) = on_nodes(node_refused, 1, paths)
    assert len(lines) == len(OUTSIDE)
    assert all("use ddp for a loss that reads them elsewhere" in line for line in lines)


def node_refused(fabric, paths):
    lines = []
    for path in paths:
        workload = build_workload(path, {})
        workload.open(workload.prepare(None, None, lambda *_: None))
        try:
            train(fabric, workload, set_up(fabric, workload, "fsdp", {}), 0, 1)
        except UserError as error:
            lines.append(str(error))
    return lines


class Whole:
    """Stands for a method: its full model is `model`."""

    def __init__(self, model):
        self.assemble = lambda: model


class Alone:
    """Stands for the fabric of a single node."""

    rank, world_size, device = 0, 1, torch.device("cpu")
    texts = SimpleNamespace(broadcast=lambda: None)

    def accounting(self, purpose):
        return nullcontext()
