"""`with istbench.record(optimizer):` around loops of every kind."""

import copy
import os
import time

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.optimizer import _global_optimizer_post_hooks

import istbench
from istbench.base.errors import RunFailed, UserError
from istbench.cluster.script_record import load_script
from istbench.node.effort import EFFORT
from istbench.plan.recording.steps import CannotRecord, RecordingEnded, StepRecorder


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Sequential(nn.Linear(16, 16), nn.ReLU()), nn.Linear(16, 2))


def loss_of(model):
    return F.cross_entropy(model(torch.randn(4, 8)), torch.randint(2, (4,)))


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    """Measure the speed of this machine once, where a record measures it three times."""
    monkeypatch.setattr(EFFORT, "repeats", 1)


@pytest.fixture
def recorded(tmp_path):
    """Records a function of the step as the body of a loop; returns the record."""

    def run(optimizer, body, *, steps=12, most=100):
        file = tmp_path / "block.json"
        taken = 0
        with istbench.record(optimizer, file=file, steps=steps) as block:
            for step in range(most):
                taken = step + 1
                body(step)
        assert block.record == load_script(file)
        assert taken == min(steps, most)
        assert not _global_optimizer_post_hooks
        return block.record

    return run


def plain(model, optimizer):
    def body(_step):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()

    return body


def test_a_plain_loop(recorded):
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    record = recorded(optimizer, plain(model, optimizer))
    named = {own.names[0]: own for own in record.parameters}
    assert list(named) == ["3.bias", "3.weight", "2.0.bias", "2.0.weight", "0.bias", "0.weight"] or {
        own.names[0] for own in record.parameters[:2]
    } == {"3.weight", "3.bias"}
    assert [own.names[0] for own in sorted(record.parameters, key=lambda own: own.place)] == [
        name for name, _ in model.named_parameters()
    ]
    ready = [own.ready_s for own in record.parameters]
    assert ready == sorted(ready)
    assert 0 < ready[0] <= ready[-1] <= record.step_s - record.update_s + 1e-9
    assert 0 <= named["0.weight"].used_s <= named["2.0.weight"].used_s <= named["3.weight"].used_s < ready[0]
    assert named["2.0.weight"].shape == (16, 16)
    assert [module.name for module in record.modules if module.container] == ["", "2"]
    assert len(record.samples_s) == 12 - 3 - 3
    assert (record.backward_passes, record.optimizers, record.state_tensors) == (1, ("Adam",), 2)
    # A product of the forward pass counts once, and twice in the backward pass but for the first layer's inputs.
    products = 2 * 4 * (3 * (16 * 16 + 16 * 2) + 2 * 8 * 16)
    assert record.machine.work.operations == products
    assert record.machine.gflops
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())


def test_seconds_and_gradients_follow_the_sleep_of_each_part(recorded):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, inputs):
            return inputs.clone()

        @staticmethod
        def backward(ctx, gradient):
            time.sleep(0.02)
            return gradient

    def body(_step):
        optimizer.zero_grad()
        time.sleep(0.01)
        hidden = Slow.apply(model[:3](torch.randn(4, 8)))
        F.cross_entropy(model[3](hidden), torch.randint(2, (4,))).backward()
        time.sleep(0.01)
        optimizer.step()

    record = recorded(optimizer, body, steps=14)
    named = {own.names[0]: own for own in record.parameters}
    assert record.step_s >= 0.04
    # A step on a busy machine may be longer than the median one, to which its parts are scaled.
    assert named["0.weight"].used_s >= 0.007
    assert named["2.0.weight"].ready_s - named["3.weight"].ready_s >= 0.014
    assert record.before_update_s >= 0.007


def test_gradients_that_accumulate_are_ready_after_the_last_backward_pass(recorded):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def body(_step):
        optimizer.zero_grad()
        for _ in range(3):
            time.sleep(0.002)
            loss_of(model).backward()
        optimizer.step()

    record = recorded(optimizer, body)
    assert (record.backward_passes, record.state_tensors) == (3, 1)
    assert record.parameters[0].ready_s > 0.006


@pytest.mark.parametrize("closure", [False, True])
def test_the_two_passes_of_sam_are_one_step(recorded, closure):
    model = network()

    class SAM(torch.optim.Optimizer):
        """As users write it: up the gradient and back by hand, and down by an optimizer inside."""

        def __init__(self, parameters):
            super().__init__(parameters, {})
            self.inner = torch.optim.SGD(self.param_groups, lr=0.1)

        @torch.no_grad()
        def ascend(self, sign):
            for parameter in model.parameters():
                parameter.add_(0.01 * sign)

        @torch.no_grad()
        def step(self, closure):
            self.ascend(1)
            torch.enable_grad()(closure)()
            self.ascend(-1)
            self.inner.step()

    sam = SAM(model.parameters())

    def body(_step):
        model.zero_grad()
        loss_of(model).backward()
        if closure:
            sam.step(lambda: loss_of(model).backward())
        else:
            sam.ascend(1)
            loss_of(model).backward()
            sam.ascend(-1)
            sam.inner.step()

    record = recorded(sam if closure else sam.inner, body)
    assert record.backward_passes == 2
    assert "parameters change between the backward passes of a step" in record.notes[-1]


def test_updates_that_a_grad_scaler_leaves_out_are_no_steps(tmp_path):
    model = network()
    first, second = (torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[0], model[2:]))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    taken = []

    def body(step):
        taken.append(step)
        model.zero_grad()
        loss = loss_of(model)
        if step in (0, 3, 4, 5, 9, 20):  # in each part of a recording
            loss = loss * torch.inf
        elif step == 7:
            model[0].weight.register_hook(lambda gradient: gradient + torch.inf)
        scaler.scale(loss).backward()
        for optimizer in (first, second):
            scaler.step(optimizer)
        scaler.update()
        if step == 7:
            model[0].weight._backward_hooks.clear()

    scaler_step = torch.amp.GradScaler.step
    recorder = StepRecorder(20)
    with pytest.raises(RecordingEnded):
        many(body, recorder)
    assert torch.amp.GradScaler.step is scaler_step
    assert len(taken) == 20 + 6  # the first one shows the optimizers all the same
    before = model[0].weight.detach().clone()
    body(-1)  # training goes on with the same scaler: a step with unscaled gradients
    assert float((model[0].weight.detach() - before).abs().max()) < 1.0
    assert recorder.record.backward_passes == 1
    assert len(recorder.record.samples_s) == 20 - 3 - 5
    assert recorder.record.machine.work.operations == 2 * 4 * (3 * (16 * 16 + 16 * 2) + 2 * 8 * 16)
    assert any("left out the update of 7 steps" in note for note in recorder.record.notes)


@pytest.mark.parametrize(("limit", "clips"), [(1.0, True), (None, False)])
def test_clipping_by_the_norm_of_all_gradients_is_seen(recorded, limit, clips):
    """A norm that is only logged is none."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def body(_step):
        optimizer.zero_grad()
        loss_of(model).backward()
        if limit is None:
            torch.nn.utils.get_total_norm([own.grad for own in model.parameters()])
        else:
            torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()

    record = recorded(optimizer, body)
    assert record.clips == clips
    assert record.memory_bytes


def test_an_evaluation_between_steps_is_left_out(recorded):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train = plain(model, optimizer)

    def body(step):
        train(step)
        if step % 4 == 3:
            model.eval()
            with torch.no_grad():
                loss_of(model)
            time.sleep(0.1)
            model.train()

    record = recorded(optimizer, body, steps=24)
    assert record.step_s < 0.05
    assert max(record.samples_s) > 0.1
    assert "the median leaves them out" in record.notes[0]


def test_a_closure_scaled_losses_and_parameters_without_gradient(recorded):
    model = network()
    model.add_module("unused", nn.Linear(3, 3))
    model[0].bias.requires_grad_(False)
    optimizer = torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.1)
    scaler = torch.amp.GradScaler("cpu")

    def body(step):
        optimizer.zero_grad()

        def closure():
            loss = loss_of(model[:4])
            loss.backward()
            return loss

        if step % 2:
            optimizer.step(closure)
        else:
            scaler.scale(loss_of(model[:4])).backward()
            scaler.step(optimizer)
            scaler.update()

    record = recorded(optimizer, body)
    last = record.parameters[-2:]
    assert {own.names[0] for own in last} <= {"unused.weight", "unused.bias", "0.bias"}
    assert any("no gradient reached unused" in note for note in record.notes)
    frozen = next(own for own in record.parameters if own.names == ("0.bias",))
    assert not frozen.trained


def test_shared_parameters_have_all_their_names_and_two_models_are_one(recorded):
    one, other = network(), network()
    other[3].weight = one[3].weight
    tensor = torch.zeros(4, requires_grad=True)
    optimizer = torch.optim.SGD([*one.parameters(), *list(other.parameters())[:4], tensor], lr=0.1)

    def body(_step):
        optimizer.zero_grad()
        (loss_of(one) + loss_of(other) + tensor.sum()).backward()
        optimizer.step()

    record = recorded(optimizer, body)
    shared = next(own for own in record.parameters if len(own.names) == 2)
    assert sorted(shared.names) == ["Sequential0.3.weight", "Sequential1.3.weight"]
    assert any("1 parameters belong to no module" in note for note in record.notes)


def test_a_compiled_model_is_not_compiled_again(recorded):
    model = network()
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    fast = torch.compile(model, backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    record = recorded(optimizer, plain(fast, optimizer))
    assert len(compiled) == 1
    assert record.machine.work is None
    assert any("torch compiled the model" in note for note in record.notes)
    assert [own.names[0] for own in record.parameters if own.place == 0] == ["0.weight"]


def test_only_the_chosen_optimizer_counts(recorded):
    model, other = network(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    second = torch.optim.SGD(other.parameters(), lr=0.1)
    train, beside = plain(model, optimizer), plain(other, second)

    def body(step):
        train(step)
        beside(step)

    assert len(recorded(optimizer, body).parameters) == 6


def many(body, inside):
    with inside:
        for step in range(100):
            body(step)


def test_optimizers_that_step_together_are_one_step():
    model = network()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.AdamW(list(model.parameters())[2:])
    taken = []

    def body(step):
        taken.append(step)
        model.zero_grad()
        loss_of(model).backward()
        first.step()
        second.step()

    recorder = StepRecorder(10)
    with pytest.raises(RecordingEnded):
        many(body, recorder)
    assert len(taken) == 10
    assert recorder.record.optimizers == ("SGD", "AdamW")
    assert len(recorder.record.samples_s) == 10 - 3 - 2


def test_a_copy_of_the_model_copies_no_recorder(monkeypatch):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def body(_step):
        optimizer.zero_grad()
        copies.append(copy.deepcopy(model))
        loss_of(model).backward()
        optimizer.step()

    copies = []
    monkeypatch.setattr(StepRecorder, "__deepcopy__", lambda *_: pytest.fail("copied"), raising=False)
    with pytest.raises(RecordingEnded):
        many(body, StepRecorder(10))
    assert len(copies) == 10


def in_turn():
    one, other = network(), network()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (one, other)]

    def body(_step):
        for model, optimizer in zip((one, other), optimizers, strict=True):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()

    return body


def late():
    model = network()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.SGD(model[3].parameters(), lr=0.1)

    def body(step):
        loss_of(model).backward()
        first.step()
        if step > 4:
            second.step()

    return body


def searching():
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    return lambda _step: optimizer.step(closure)


def sparse():
    model = nn.Embedding(10, 4, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def body(_step):
        optimizer.zero_grad()
        model(torch.tensor([1, 2])).sum().backward()
        optimizer.step()

    return body


@pytest.mark.parametrize(
    ("loop", "reason"),
    [
        (in_turn, "2 optimizers step in turn, with a backward pass between them"),
        (late, "a second optimizer (SGD) begins to step after step 6"),
        (searching, "LBFGS computes the loss several times in a step"),
        (sparse, "a parameter has sparse gradients"),
    ],
)
def test_what_cannot_be_recorded_says_why(loop, reason):
    recorder = StepRecorder(12)
    with pytest.raises(CannotRecord) as refused:
        many(loop(), recorder)
    assert reason in str(refused.value)
    assert recorder.refusal == str(refused.value)


def test_a_block_that_ends_early(recorded, tmp_path):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    record = recorded(optimizer, plain(model, optimizer), steps=30, most=17)
    assert len(record.samples_s) == 17 - 3 - 9
    steps = [plain(model, optimizer)] * 4

    def short():
        with istbench.record(optimizer, file=tmp_path / "short.json"):
            for step in steps:
                step(0)

    with pytest.raises(
        RunFailed, match="ended after 4 optimizer steps; a record of 30 takes at least 15: ask for fewer steps"
    ):
        short()


def test_wrong_arguments(tmp_path):
    with pytest.raises(UserError, match="not a Sequential"):
        istbench.record(network())
    optimizer = torch.optim.SGD(network().parameters(), lr=0.1)
    with pytest.raises(UserError, match="at least 8 steps, not 2"):
        istbench.record(optimizer, steps=2)
    searching_optimizer = torch.optim.LBFGS(network().parameters())
    with (
        pytest.raises(UserError, match="the block cannot be recorded: LBFGS"),
        istbench.record(searching_optimizer, file=tmp_path / "x.json"),
    ):
        searching_optimizer.step(lambda: 0.0)


def test_the_record_of_a_block_that_changes_the_directory_lies_where_it_began(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train = plain(model, optimizer)
    with istbench.record(optimizer, file="block.json", steps=8) as block:
        os.chdir("elsewhere")
        while True:
            train(0)
    assert block.file == tmp_path / "block.json"
    assert load_script(block.file) == block.record
