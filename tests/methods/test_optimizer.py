"""The learning rate of a local step, which follows from its number and the budget alone; and the update itself."""

import copy
import dataclasses
import json

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from istbench.base.errors import UserError
from istbench.base.options.options import build_options
from istbench.methods.optimizer import (
    RULES,
    ClippedOptions,
    OptimizerOptions,
    load_optimizer_state,
    optimizer_state,
    outer_layers,
    set_rate,
    started,
)
from istbench.methods.update_rule import UpdateRule
from istbench.node.checkpoint import Flat
from istbench.node.registry import build_method, load_method, registered

SCHEDULES = (
    st.builds(
        OptimizerOptions,
        lr=st.floats(1e-6, 10),
        schedule=st.sampled_from(["constant", "cosine"]),
        warmup=st.floats(0, 1, exclude_max=True),
    )
    | st.builds(
        OptimizerOptions,
        lr=st.floats(1e-6, 10),
        schedule=st.just("cosine"),
        cosine_end=st.floats(0, 1, exclude_max=True),
    )
    | st.builds(
        OptimizerOptions,
        lr=st.floats(1e-6, 10),
        schedule=st.just("step"),
        warmup=st.floats(0, 1, exclude_max=True),
        decay_at=st.lists(st.floats(0.01, 0.99), min_size=1, max_size=4).map(tuple),
        decay=st.floats(0.01, 0.99),
    )
)


@example(options=OptimizerOptions(schedule="cosine", warmup=0.75), steps=1)  # nothing but warm-up
@given(options=SCHEDULES, steps=st.integers(1, 300))
def test_rates_rise_in_the_warm_up_and_never_after_it(options, steps):
    rates = [options.rate_at(step, steps) for step in range(steps)]
    warm = round(options.warmup * steps)
    assert all(0 < rate <= options.lr for rate in rates)
    if options.schedule != "step":
        assert rates[: warm + 1] == sorted(rates[: warm + 1])
    assert rates[warm:] == sorted(rates[warm:], reverse=True)
    assert warm >= steps or options.schedule == "step" or rates[warm] == options.lr


def test_the_rates_of_a_short_run():
    def rates(steps=10, **options):
        return [OptimizerOptions(lr=1.0, **options).rate_at(step, steps) for step in range(steps)]

    assert rates() == [1.0] * 10
    assert rates(warmup=0.3) == [0.25, 0.5, 0.75] + [1.0] * 7
    assert rates(schedule="step") == pytest.approx([1.0] * 5 + [0.1] * 3 + [0.01] * 2)
    assert rates(schedule="step", decay_at=(0.2,), decay=0.5) == [1.0] * 2 + [0.5] * 8
    cosine = rates(schedule="cosine", warmup=0.2)
    assert cosine[:3] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert cosine[6] == pytest.approx(0.5)
    assert 0 < cosine[9] < 0.05
    assert OptimizerOptions(schedule="cosine", lr=1.0).rate_at(0, 1) == 1.0
    above = rates(schedule="cosine", warmup=0.2, cosine_end=0.1)
    assert above == pytest.approx([*cosine[:2], *(0.1 + 0.9 * rate for rate in cosine[2:])])


@pytest.mark.parametrize("step", [-1, 10])
def test_a_schedule_has_no_step_outside_its_budget(step):
    with pytest.raises(ValueError, match="no local step"):
        OptimizerOptions(schedule="cosine").rate_at(step, 10)
    with pytest.raises(ValueError, match="no local step 0 in a budget of 0"):
        OptimizerOptions(warmup=0.5).rate_at(0, 0)


@pytest.mark.parametrize("decay_at", ["0.3, 0.6", [0.3, 0.6], (0.3, 0.6)])
def test_shares_are_typed_between_commas_or_listed(decay_at):
    options = build_options(OptimizerOptions, {"schedule": "step", "decay_at": decay_at}, "method 'ddp'", {})
    assert options.decay_at == (0.3, 0.6)
    assert build_options(OptimizerOptions, dataclasses.asdict(options), "method 'ddp'", {}) == options


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_adam_is_fused_on_a_cpu_and_starts_from_any_state(optimizer):
    options = OptimizerOptions(optimizer=optimizer, lr=0.01, weight_decay=0.1)
    rule = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimizer]
    torch.manual_seed(0)
    parameter, other = (torch.nn.Parameter(torch.linspace(-1, 1, 37)) for _ in range(2))
    fused, plain = options.build([parameter]), rule([other], lr=0.01, weight_decay=0.1)
    started(fused, parameter, options.slots)
    for _ in range(5):
        parameter.grad = torch.randn(37)
        other.grad = parameter.grad.clone()
        fused.step()
        plain.step()
    assert [group["fused"] for group in fused.param_groups] == [True]
    torch.testing.assert_close(parameter, other, rtol=1e-6, atol=1e-7)
    blank = torch.nn.Parameter(torch.empty(37, device="meta"))
    blank.grad = torch.empty_like(blank)
    options.build([blank]).step()


def stepped(options, parameters, gradients, part_of=None):
    """`parameters` after one step with `gradients`."""
    own = [torch.nn.Parameter(parameter.clone()) for parameter in parameters]
    optimizer = options.build(own, part_of=part_of)
    for parameter, gradient in zip(own, gradients, strict=True):
        parameter.grad = gradient.clone()
    optimizer.step()
    return own


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_weight_decay_of_matrices_leaves_vectors_alone(optimizer):
    torch.manual_seed(0)
    parameters, gradients = ([torch.randn(4, 3), torch.randn(4)] for _ in range(2))
    decaying = {"optimizer": optimizer, "lr": 0.1, "weight_decay": 0.5}
    everywhere = stepped(OptimizerOptions(**decaying), parameters, gradients)
    nowhere = stepped(OptimizerOptions(optimizer=optimizer, lr=0.1), parameters, gradients)
    some = OptimizerOptions(**decaying, weight_decay_of="matrices")
    matrix, vector = stepped(some, parameters, gradients)
    assert torch.equal(matrix, everywhere[0])
    assert torch.equal(vector, nowhere[1])
    assert not torch.equal(vector, everywhere[1])
    # A server's optimizer has flat parts of a parameter.
    (part,) = stepped(some, [parameters[0].flatten()[:5]], [gradients[0].flatten()[:5]], part_of=parameters[0])
    assert torch.equal(part, matrix.flatten()[:5])
    (part,) = stepped(some, [parameters[1][:2]], [gradients[1][:2]], part_of=parameters[1])
    assert torch.equal(part, vector[:2])


def test_betas_are_adams():
    torch.manual_seed(0)
    parameter, gradient = torch.randn(7), torch.randn(7)
    (own,) = stepped(OptimizerOptions(optimizer="adamw", lr=0.1, beta1=0.5, beta2=0.6), [parameter], [gradient])
    other = torch.nn.Parameter(parameter.clone())
    other.grad = gradient
    torch.optim.AdamW([other], lr=0.1, betas=(0.5, 0.6), weight_decay=0).step()
    torch.testing.assert_close(own, other)


def test_clipping_bounds_the_joint_norm_of_the_gradients():
    parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    for parameter in parameters:
        parameter.grad = torch.full((2,), 3.0)
    ClippedOptions().clip_gradients(parameters)
    assert [parameter.grad.tolist() for parameter in parameters] == [[3.0, 3.0]] * 2
    ClippedOptions(clip=100.0).clip_gradients(parameters)
    assert [parameter.grad.tolist() for parameter in parameters] == [[3.0, 3.0]] * 2
    ClippedOptions(clip=2.0).clip_gradients(parameters)
    assert torch.cat([parameter.grad for parameter in parameters]).tolist() == pytest.approx([1.0] * 4)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"cosine_end": 0.1}, "cosine_end is an option of schedule=cosine"),
        ({"beta2": 0.99}, "beta2 is an option of adam, adamw, muon.*, not of sgd"),
        ({"weight_decay_of": "matrices"}, "weight_decay_of needs weight_decay, which is 0"),
    ],
)
def test_options_of_another_rule_are_refused(options, says):
    with pytest.raises(UserError, match=says):
        OptimizerOptions(**options)


def step_all(optimizers, parameters, first, last):
    for step in range(first, last):
        generator = torch.Generator().manual_seed(step)
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        for optimizer in optimizers:
            optimizer.step()


def some_parameters():
    generator = torch.Generator().manual_seed(0)
    shapes = ((6, 4), (5,), (3, 2, 2, 2), (4, 6))
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def test_muon_is_that_of_torch_for_matrices_and_adamw_for_the_rest():
    options = OptimizerOptions(optimizer="muon", lr=0.02, weight_decay=0.1, weight_decay_of="matrices", beta2=0.95)
    mine, theirs, resumed = some_parameters(), some_parameters(), some_parameters()
    own, again = options.build(mine), options.build(resumed)
    muon = torch.optim.Muon([theirs[0], theirs[3]], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    rest = [{"params": [theirs[2]], "weight_decay": 0.1}, {"params": [theirs[1]], "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(rest, lr=0.02, betas=(0.9, 0.95))
    for optimizer in (own, muon, adamw):
        set_rate(optimizer, 0.05)
    step_all([own], mine, 0, 4)
    step_all([muon, adamw], theirs, 0, 4)
    for parameter, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(parameter, other, rtol=1e-5, atol=1e-6)  # fused and not
    state = json.loads(json.dumps(own.state_dict()["param_groups"]))
    load_optimizer_state(again, {**copy.deepcopy(optimizer_state(own)), "param_groups": state})
    with torch.no_grad():
        for parameter, other in zip(resumed, mine, strict=True):
            parameter.copy_(other)
    step_all([own], mine, 4, 6)
    step_all([again], resumed, 4, 6)
    assert all(torch.equal(parameter, other) for parameter, other in zip(mine, resumed, strict=True))
    kept = [value for slots in own.state.values() for name, value in slots.items() if name != "step"]
    assert options.state_bytes(mine) == sum(value.nbytes for value in kept)


MODELS = {
    "transformer": (
        lambda: nn.ModuleDict(
            {
                "words": nn.Embedding(9, 4),
                "places": nn.Embedding(6, 4),
                "attention": nn.MultiheadAttention(4, 2),
                "norm": nn.LayerNorm(4),
                "head": nn.Linear(4, 9, bias=False),
            }
        ),
        {"attention.in_proj_weight", "attention.out_proj.weight"},
    ),
    "mlp": (lambda: nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)), {"1.weight"}),
    "one hidden layer": (lambda: nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)), set()),
    "convolutions": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(4, 4), nn.Linear(4, 2)), {"1.weight"}),
}


def test_a_loaded_state_lies_in_memory_as_its_parameter_does():
    """torch's fused kernels walk both by their addresses: other strides give a weight another weight's moments."""
    parameters = [nn.Parameter(torch.rand(3, 4).t()), nn.Parameter(torch.rand(4, 3))]
    states = []
    for kept in (False, True):
        own = [
            nn.Parameter(parameter.detach().clone(memory_format=torch.preserve_format)) for parameter in parameters
        ]
        optimizer = torch.optim.Adam(own, lr=0.1, fused=True)
        for step in range(4):
            if step == 2 and kept:
                saved = {
                    name: value.contiguous() if isinstance(value, torch.Tensor) else value
                    for name, value in optimizer.state[own[0]].items()
                }
                state = optimizer_state(optimizer)
                state["state"]["0"] = saved
                optimizer = torch.optim.Adam(own, lr=0.1, fused=True)
                load_optimizer_state(optimizer, state)
            for parameter in own:
                parameter.grad = torch.arange(12.0).view(parameter.shape).sub(step).contiguous()
                parameter.grad = torch.empty_like(parameter).copy_(parameter.grad)
            optimizer.step()
        states.append([parameter.detach().clone() for parameter in own])
    assert all(map(torch.equal, *states))


def test_a_state_with_settings_that_a_step_added_and_infinite_ones_loads_again():
    class Growing(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            self.param_groups[0]["seen"] = 1.0

    def made():
        optimizer = Growing([nn.Parameter(torch.ones(2))], lr=0.1)
        optimizer.param_groups[0]["growth"] = float("inf")
        return optimizer

    first, second = made(), made()
    first.param_groups[0]["params"][0].grad = torch.ones(2)
    first.step()
    flat = Flat.of(optimizer_state(first))
    load_optimizer_state(second, flat.state())
    assert (second.param_groups[0]["growth"], second.param_groups[0]["seen"]) == (float("inf"), 1.0)


@pytest.mark.parametrize("kind", MODELS)
def test_muon_leaves_embeddings_and_outer_layers_to_adamw(kind):
    build, hidden = MODELS[kind]
    options = OptimizerOptions(optimizer="muon", lr=0.02, weight_decay=0.1, weight_decay_of="matrices")
    model, other = build(), build()
    other.load_state_dict(model.state_dict())
    outer = options.rule.as_vectors(model)
    own = options.build(model.parameters(), as_vectors=outer)
    rest = [value for name, value in other.named_parameters() if name not in hidden]
    matrices = [value for name, value in other.named_parameters() if name in hidden]
    theirs = [dataclasses.replace(options, optimizer="adamw").build(rest)]
    if matrices:
        theirs.append(torch.optim.Muon(matrices, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"))
    step_all([own], list(model.parameters()), 0, 3)
    step_all(theirs, list(other.parameters()), 0, 3)
    for (name, value), same in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(value, same), name
    kept = [value for slots in own.state.values() for name, value in slots.items() if name != "step"]
    assert options.state_bytes(model.parameters(), outer) == sum(value.nbytes for value in kept)
    load_optimizer_state(own, copy.deepcopy(optimizer_state(own)))


def test_tied_weights_are_a_table_and_hide_no_other_matrix():
    table, last = nn.Embedding(9, 4), nn.Linear(4, 9)
    last.weight = table.weight
    model = nn.Sequential(table, nn.Linear(4, 4), last)
    assert {id(own) for own in outer_layers(model)} == {id(table.weight)}


def test_a_rule_names_the_numbers_of_its_state(monkeypatch):
    names = ("exp_avg", "exp_avg_sq", "step", "mu_product")
    rule = UpdateRule(
        name="nadam",
        build=lambda groups, options: torch.optim.NAdam(groups, lr=options.lr),
        made_by=torch.optim.NAdam,
        kept=lambda dimensions: names,
        numbers=frozenset({"step", "mu_product"}),
    )
    monkeypatch.setitem(RULES, rule.name, rule)
    parameters = [torch.nn.Parameter(torch.ones(3, 2))]
    own, again = (rule.build([{"params": parameters}], OptimizerOptions()) for _ in range(2))
    step_all([own], parameters, 0, 2)
    load_optimizer_state(again, copy.deepcopy(optimizer_state(own)))
    assert torch.equal(again.state[parameters[0]]["mu_product"], own.state[parameters[0]]["mu_product"])
    damaged = copy.deepcopy(optimizer_state(own))
    damaged["state"]["0"]["mu_product"] = torch.ones(3, 2)
    with pytest.raises(ValueError, match="over other parameters"):
        load_optimizer_state(again, damaged)


@pytest.mark.parametrize("name", [entry.name for entry in registered("methods")])
def test_muon_is_for_methods_that_step_whole_matrices(name):
    if not load_method(name).own_updates:
        assert build_method(name, {"optimizer": "muon"}).options.optimizer == "muon"
        return
    with pytest.raises(UserError, match=f"{name} .*, and muon needs whole matrices"):
        build_method(name, {"optimizer": "muon"})
