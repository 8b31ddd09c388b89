"""The outer step beside torch's own SGD, and its state."""

import pytest
import torch

from istbench.methods.diloco import OuterRoundOptions, OuterStep, SmolStep

SIZES = (7, 3)


def flats(seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator) for size in SIZES]


@pytest.mark.parametrize(("rate", "momentum"), [(0.7, 0.9), (1.0, 0.0), (0.3, 0.5)])
def test_the_step_is_that_of_torch_bit_for_bit(rate, momentum):
    live, steps = flats(0), 5
    outer = OuterStep(live, OuterRoundOptions(outer_lr=rate, outer_momentum=momentum))
    parameters = [torch.nn.Parameter(flat.clone()) for flat in live]
    optimizer = torch.optim.SGD(parameters, lr=rate, momentum=momentum, nesterov=momentum > 0)
    for step in range(1, 1 + steps):
        for flat, moved in zip(live, flats(step), strict=True):
            flat.add_(moved)
        changes = outer.changes()
        for parameter, change, flat in zip(parameters, changes, live, strict=True):
            assert torch.equal(change, parameter.detach() - flat)
            parameter.grad = change.clone()
        wanted = outer.after([change.clone() for change in changes])
        outer.apply(changes)
        optimizer.step()
        for parameter, flat, start, before in zip(parameters, live, outer.start, wanted, strict=True):
            assert torch.equal(parameter, flat)
            assert torch.equal(parameter, start)
            assert torch.equal(parameter, before)


@pytest.mark.parametrize(("rule", "factor"), [(OuterStep, 10), (SmolStep, 19)])
def test_a_constant_change_moves_the_weights_by_so_many_rates_in_the_long_run(rule, factor):
    live = [torch.zeros(1, dtype=torch.float64)]
    outer = rule(live, OuterRoundOptions(outer_lr=0.5, outer_momentum=0.9))
    for _ in range(400):
        before = live[0].clone()
        outer.apply([torch.ones(1, dtype=torch.float64)])
    assert float(before - live[0]) == pytest.approx(0.5 * factor, rel=1e-9)


def test_the_first_steps_of_both_rules_are_alike_and_longer_than_the_change():
    for rule in (OuterStep, SmolStep):
        outer = rule([torch.zeros(1)], OuterRoundOptions(outer_lr=0.5, outer_momentum=0.9))
        outer.apply([torch.ones(1)])
        assert float(outer.start[0]) == pytest.approx(-0.5 * 1.9)


def test_live_weights_mix_with_the_new_ones():
    live = [torch.tensor([4.0])]
    outer = OuterStep(live, OuterRoundOptions(outer_lr=1.0, outer_momentum=0.0))
    live[0].fill_(2.0)
    outer.apply([torch.tensor([4.0])], keep=0.25)
    assert (float(outer.start[0]), float(live[0])) == (0.0, 0.5)


def test_a_part_is_the_same_memory_and_a_copy_is_not():
    live = flats(0)
    outer = OuterStep(live, OuterRoundOptions())
    copied = outer.copy()
    part = outer.part([slice(2, 5), slice(0, 0)])
    live[0].mul_(2)
    part.apply(part.changes())
    assert torch.equal(live[0][2:5], outer.start[0][2:5])
    assert not torch.equal(live[0][:2], outer.start[0][:2])
    assert int(outer.momentum[0].count_nonzero()) == 3
    assert all(not change.count_nonzero() for change in copied.changes())
    assert not copied.momentum[0].count_nonzero()


def test_a_state_fits_the_same_tensors_only():
    first, second = (OuterStep(flats(seed), OuterRoundOptions()) for seed in (0, 1))
    first.apply(flats(2))
    second.load_state_dict(first.state_dict())
    for one, other in zip(first.start + first.momentum, second.start + second.momentum, strict=True):
        assert torch.equal(one, other)
    for other in ([torch.zeros(7)], [torch.zeros(7), torch.zeros(4)]):
        with pytest.raises(ValueError, match="of (other tensors|another size or type)"):
            OuterStep(other, OuterRoundOptions()).load_state_dict(first.state_dict())
