"""A plug-in's workload is tried before training: groups that do not fit its model are refused by name."""

import pytest
import torch
import torch.distributed as dist

from istbench.base.errors import UserError
from istbench.launch.processes.on_nodes import on_nodes
from istbench.methods.data_parallel import DataParallel
from istbench.methods.ist import IndependentSubnetTraining
from istbench.node.rehearsal import rehearse
from istbench.workloads.neuron_groups.groups import NeuronGroup, Slot, validate_groups
from istbench.workloads.toy import Toy


def opened(tmp_path, **attributes):
    workload = type("Own", (Toy,), {"name": "own", **attributes})()
    workload.open(workload.prepare(None, tmp_path, lambda *_: None))
    return workload


def groups(**slots):
    return lambda self, model: [
        NeuronGroup(name, 16, tuple(Slot(tensor, dim) for tensor, dim in places)) for name, places in slots.items()
    ]


def refusal(tmp_path, *, method=IndependentSubnetTraining, **attributes):
    with pytest.raises(UserError) as refused:
        rehearse(opened(tmp_path, **attributes), method)
    return str(refused.value)


FIRST = [("linear1.weight", 0), ("linear1.bias", 0), ("linear2.weight", 1)]
SECOND = [("linear2.weight", 0), ("linear2.bias", 0), ("output.weight", 1)]


def test_groups_that_fit_are_taken_and_random_numbers_stay_as_they_were(tmp_path):
    torch.manual_seed(3)
    wanted = torch.rand(1)
    torch.manual_seed(3)
    rehearse(opened(tmp_path, neuron_groups=groups(first=FIRST, second=SECOND)), IndependentSubnetTraining)
    assert torch.equal(torch.rand(1), wanted)


def test_biases_of_the_other_layer_fit_in_size_alone_and_are_refused(tmp_path):
    swapped = groups(
        first=[("linear1.weight", 0), ("linear2.bias", 0), ("linear2.weight", 1)],
        second=[("linear2.weight", 0), ("linear1.bias", 0), ("output.weight", 1)],
    )
    workload = opened(tmp_path, neuron_groups=swapped)
    with torch.device("meta"):
        model = workload.build_model()
    validate_groups(model, workload.neuron_groups(model))  # so it was trained
    said = refusal(tmp_path, neuron_groups=swapped)
    assert said.startswith(
        "workload 'own': neuron group 'first' does not fit the model: another order of its 16 units "
    )
    rehearse(workload, DataParallel)  # a method that cuts nothing asks for no groups


def test_a_last_layer_that_starts_at_zero_hides_no_wrong_group(tmp_path):
    def rows(self, model, name, rows, seed):
        values = Toy.initial_rows(self, model, name, rows, seed)
        return values * 0 if name.startswith("output") else values

    said = refusal(tmp_path, initial_rows=rows, neuron_groups=groups(first=FIRST[::2], second=SECOND))
    assert said.startswith("workload 'own': neuron group 'first' does not fit the model: another order of its 16 ")


def test_a_place_that_is_left_out_is_named(tmp_path):
    said = refusal(tmp_path, neuron_groups=groups(first=[FIRST[0], FIRST[2]], second=SECOND))
    assert "; dimensions of this size in no slot: linear1.bias dimension 0; list every dimension" in said


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (None, "neuron_groups must return a list of NeuronGroup, not None"),
        (["first"], "neuron_groups must return a list of NeuronGroup, with 'first' in it"),
        ([NeuronGroup("first", 16.0, (Slot("linear1.weight", 0),))], "size must be a whole number of at least 1"),
        (
            [NeuronGroup("first", 16, (("linear1.weight", 0),))],
            "('linear1.weight', 0) is no Slot(",
        ),
        ([NeuronGroup("first", 16, ())], "neuron group 'first' has no slots"),
    ],
)
def test_groups_of_another_kind_are_refused(made, said):
    with torch.device("meta"):
        model = Toy().build_model()
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        validate_groups(model, made)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        (
            {"loss": lambda self, model, batch: None},
            "loss must return a scalar tensor to call backward on",
        ),
        ({"loss": lambda self, model, batch: model(batch[0])}, "not a tensor of shape (8, 4)"),
        (
            {"train_batch": lambda self, indices, generator: torch.ones(8, 8)},
            "train_batch must return a pair of inputs and targets, not Tensor",
        ),
        ({"train_size": 0}, "train_size is 0 after its data is open"),
    ],
)
def test_what_no_method_could_train_is_refused_for_any_method(tmp_path, attributes, said):
    assert said in refusal(tmp_path, method=DataParallel, **attributes)


def test_an_error_of_the_plug_in_is_left_to_training(tmp_path):
    def loss(self, model, batch):
        raise KeyError("RANK")

    rehearse(opened(tmp_path, loss=loss), IndependentSubnetTraining)


def summing(self, model, batch):
    """A loss that sends a message, as SyncBatchNorm does."""
    value = Toy.loss(self, model, batch)
    if dist.get_world_size() > 1:
        dist.all_reduce(value.detach().clone())
    return value


def node_rehearsed(fabric):
    said = ""
    workload = type("Own", (Toy,), {"name": "own", "loss": summing})()
    workload.open(workload.prepare(None, None, lambda *_: None))
    if fabric.rank == 0:
        with pytest.raises(UserError) as refused:
            rehearse(workload, DataParallel)
        said = str(refused.value)
    total = torch.ones(1)
    fabric.all_reduce_sum(total)
    return said, total.item()


@pytest.mark.processes
def test_a_model_that_sends_messages_of_its_own_is_refused_while_the_other_ranks_wait():
    (said, total), (silence, same) = on_nodes(node_rehearsed, 2)
    assert "sends messages of its own through torch.distributed (allreduce)" in said
    assert (silence, total, same) == ("", 2.0, 2.0)
