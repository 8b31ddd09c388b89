"""Mixed precision, memory formats and compilers, in one process."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from istbench.base.errors import UserError
from istbench.node.compute_options import Computed, compiling
from istbench.studies.conformance.training import initial_model, open_workload
from istbench.workloads.toy import Toy

CPU = torch.device("cpu")


def batch_of(workload):
    return workload.train_batch(torch.arange(15), torch.Generator())


def as_told(workload, **told):
    return Computed(workload, CPU, **told)


@pytest.mark.parametrize(("amp", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_layers_compute_in_half_precision_and_everything_that_lasts_is_float32(amp, dtype):
    workload = as_told(open_workload("toy", {"batch_norm": True}), amp=amp)
    model, seen = initial_model(workload), []
    model.linear2.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    loss = workload.loss(model, batch_of(workload))
    loss.backward()
    assert seen == [dtype]
    assert {loss.dtype, *(p.dtype for p in model.parameters()), *(p.grad.dtype for p in model.parameters())} == {
        torch.float32
    }
    assert model(batch_of(workload)[0]).dtype == torch.float32


class Faint(Toy):
    """Its gradients are zero in float16, unless its loss is scaled."""

    def loss(self, model, batch):
        points, clusters = batch
        return F.cross_entropy(model(points) * 2.0**-18, clusters)


def test_faint_gradients_survive_float16_and_are_scaled_back_once():
    plain = Faint()
    plain.open(plain.prepare(None, None, lambda *_: None))
    workload = as_told(plain, amp="fp16")
    gradients = []
    for way in (plain, workload):
        model = initial_model(plain)
        for _ in range(3):
            model.zero_grad()
            way.loss(model, batch_of(plain)).backward()
        gradients.append([p.grad for p in model.parameters()])
    for exact, half in zip(*gradients, strict=True):
        assert exact.abs().max() > 0
        torch.testing.assert_close(half, exact, rtol=0.05, atol=0.05 * float(exact.abs().max()))


def test_images_and_filters_have_their_channels_last():
    class Images(Toy):
        def build_model(self):
            return nn.Sequential(nn.Conv2d(2, 4, 2), nn.Flatten(), nn.Linear(4, 4))

        def loss(self, model, batch):
            self.strides = batch[0].stride()
            return F.cross_entropy(model(batch[0]), batch[1])

    workload = Images()
    told = as_told(workload, channels_last=True)
    model = initial_model(told)
    assert model[0].weight.stride() == (8, 1, 4, 2)
    assert model[2].weight.stride() == (4, 1)
    told.loss(model, (torch.zeros(3, 2, 2, 2), torch.zeros(3, dtype=torch.int64))).backward()
    assert workload.strides == (8, 1, 4, 2)


def test_every_model_with_channels_last_has_quick_norms_of_few_channels():
    class Images(Toy):
        def build_model(self):
            return nn.Sequential(nn.Conv2d(3, 5, 1), nn.BatchNorm2d(5))

    model = initial_model(as_told(Images(), channels_last=True))
    images = torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last)
    assert not model[0](images).is_contiguous()
    assert model(images).is_contiguous()


def test_a_model_that_cannot_be_compiled_is_one_line():
    from torch._dynamo.exc import BackendCompilerFailed

    refused = pytest.raises(
        UserError, match=r"^torch cannot compile this model \(no space left\); leave out --compile$"
    )
    with refused, compiling():
        raise BackendCompilerFailed("inductor", OSError("no space left\nat line 3"), None)


def test_a_node_with_fewer_samples_has_smaller_gradients_of_the_same_loss():
    plain = open_workload("toy", {})
    weighted, gradients, losses = as_told(plain, weight=0.25), [], []
    for way in (plain, weighted):
        model = initial_model(plain)
        losses.append(way.loss(model, batch_of(plain)))
        losses[-1].backward()
        gradients.append([p.grad for p in model.parameters()])
    assert torch.equal(*losses)
    assert all(torch.equal(own, whole * 0.25) for whole, own in zip(*gradients, strict=True))
