"""Mistakes of task files, and honest code that a library cannot copy, measure or move: one file each, by name."""

TASK = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

batch_size = 4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.two(self.one(x).relu())


def model():
    return Net()


def data(train):
    return TensorDataset(torch.ones(16, 3), torch.zeros(16).long())


def loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])
"""
EVALUATE = """

def evaluate(model, batches):
    return {"accuracy": sum(float((model(x).argmax(1) == y).float().mean()) for x, y in batches) / 4}
"""
OPTIMIZER = """

def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
"""


def _with(old, new, more=""):
    assert old in TASK + more, old
    return (TASK + more).replace(old, new)


def _model(code):
    return _with("    return Net()", code)


def _attribute(code):
    return _model(f"    net = Net()\n    {code}\n    return net")


def _data(code):
    return _with("    return TensorDataset(torch.ones(16, 3), torch.zeros(16).long())", code)


def _loss(code):
    return _with("    return F.cross_entropy(model(batch[0]), batch[1])", code)


def _evaluate(code):
    return _with(EVALUATE.strip().splitlines()[1], code, EVALUATE)


def _optimizer(code):
    return _with("    return torch.optim.SGD(parameters, lr=0.1)", code, OPTIMIZER)


def _forward(code):
    return _with("        return self.two(self.one(x).relu())", code)


_BATCHES = "[(torch.ones(4, 3), torch.zeros(4).long())] * 3"
_DATASET = """    class Own(torch.utils.data.Dataset):
        def __len__(self):
            return 16

        def __getitem__(self, index):
            {}

    return {}"""
_BACKWARD = """        class Own(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, gradient):
                {}

        return self.two(Own.apply(self.one(x)))"""
_PART = """    class Part:
        def __init__(self):
            self.x, self.y = torch.ones(4, 3), torch.zeros(4).long()

        {}

    return [Part()] * 3"""

MISTAKES = {
    # The file.
    "missing package": "import no_such_package_at_all\n" + TASK,
    "syntax error": TASK + "\ndef broken(:\n",
    "import raises": TASK + "\nraise OSError('no table')\n",
    "import exits": TASK + "\nraise SystemExit(3)\n",
    "import interrupted": TASK + "\nraise KeyboardInterrupt\n",
    # model().
    "undefined in model": _model("    return Nett()"),
    "model of none": _model("    return None"),
    "model of a tuple": _model("    return Net(), 1"),
    "model of a class": _model("    return Net"),
    "model exits": _model("    raise SystemExit('over')"),
    "model interrupted": _model("    raise KeyboardInterrupt"),
    "model scripted": _model("    return torch.jit.script(Net())"),
    "model part scripted": _attribute("net.one = torch.jit.script(net.one)"),
    "model traced": _model("    return torch.jit.trace(Net(), torch.ones(4, 3))"),
    "model with a lock": _attribute("import threading; net.lock = threading.Lock()"),
    "model with a generator": _attribute("net.numbers = (number for number in range(3))"),
    "model with an open file": _attribute("net.file = open(__file__)"),
    "model with a random generator": _attribute("net.random = torch.Generator()"),
    "model with an activation": _attribute("net.kept = net.one(torch.ones(1, 3))"),
    "model refuses copies": _with("    def forward", "    def __deepcopy__(self, memo):\n        raise TypeError('no copies')\n\n    def forward"),  # noqa: E501
    "model refuses to move": _with("    def forward", "    def _apply(self, fn, recurse=True):\n        raise RuntimeError('stays here')\n\n    def forward"),  # noqa: E501
    "model refuses its state": _with("    def forward", "    def state_dict(self, *a, **k):\n        raise RuntimeError('no state')\n\n    def forward"),  # noqa: E501
    "model hides parameters": _with("    def forward", "    def named_parameters(self, *a, **k):\n        raise RuntimeError('hidden')\n\n    def forward"),  # noqa: E501
    "model on another device": _attribute("net.to('cuda')"),
    "model part without a device": _attribute("net.two.to('meta')"),
    "model reads values": _attribute("assert net.one.weight.sum().item() < 1e9"),
    "weight norm": _attribute("torch.nn.utils.weight_norm(net.one)"),
    "parameter hook raises": _attribute("net.one.weight.register_hook(lambda gradient: undefined)"),
    "module hook raises": _attribute("net.one.register_forward_hook(lambda *_: undefined)"),
    "train mode raises": _with("    def forward", "    def train(self, mode=True):\n        raise RuntimeError('no modes')\n\n    def forward"),  # noqa: E501
    # forward().
    "forward lacks an attribute": _forward("        return self.three(x)"),
    "forward of a wrong shape": _with("nn.Linear(8, 2)", "nn.Linear(9, 2)"),
    "forward of a wrong type": _forward("        return self.two(self.one(x.double()))"),
    "forward to another device": _forward("        return self.two(self.one(x.cuda()))"),
    "forward on meta": _forward("        return self.two(self.one(x.to('meta')))"),
    "forward exits": _forward("        raise SystemExit(0)"),
    "forward interrupted": _forward("        raise KeyboardInterrupt"),
    "forward quits in training": _forward("        if self.training:\n            exit()\n        return self.two(self.one(x))"),  # noqa: E501
    "backward raises": _forward(_BACKWARD.format("return gradient * undefined")),
    "backward of another shape": _forward(_BACKWARD.format("return gradient[:1]")),
    "backward in place": _forward("        x = self.one(x).sigmoid()\n        y = self.two(x)\n        x.mul_(2)\n        return y"),  # noqa: E501
    # data().
    "undefined in data": _data("    return table"),
    "data of none": _data("    return None"),
    "data of a number": _data("    return 5"),
    "data of a text": _data("    return 'table.csv'"),
    "data of an empty list": _data("    return []"),
    "data yields none": _data("    return [None] * 3"),
    "data yields text": _data("    return ['a'] * 3"),
    "data without a length": _data(_DATASET.format("return torch.ones(3), 0", "iter(())")),
    "data with a bad length": _data(_DATASET.format("return torch.ones(3), 0", "Own()").replace("return 16", "return 'many'")),  # noqa: E501
    "dataset raises": _data(_DATASET.format("return undefined", "Own()")),
    "dataset raises late": _data(_DATASET.format("return torch.ones(3), [0][index // 12]", "Own()")),
    "dataset raises in a process": _data(_DATASET.format("return undefined", "DataLoader(Own(), 4, num_workers=1)")),  # noqa: E501
    "dataset of unlike samples": _data(_DATASET.format("return torch.ones(3 + index), 0", "Own()")),
    "dataset of objects": _data(_DATASET.format("return object()", "Own()")),
    "loader of unlike samples": _data(_DATASET.format("return torch.ones(3 + index), 0", "DataLoader(Own(), 4)")),
    "batch with an odd repr": _data(_PART.format("def __repr__(self):\n            raise ValueError('no repr')") + "").replace("Part()]", "(torch.ones(4, 3), torch.zeros(4).long(), Odd())]").replace("    class Part:\n        def __init__(self):\n            self.x, self.y = torch.ones(4, 3), torch.zeros(4).long()\n", "    class Odd:"),  # noqa: E501
    "batch cannot be copied": _data(_PART.format("def __copy__(self):\n            raise TypeError('no copy')")),
    "batch hides attributes": _data(_PART.format("def __getattribute__(self, name):\n            raise AttributeError(name)")),  # noqa: E501
    "batch of quantized tensors": _data("    return [(torch.quantize_per_tensor(torch.ones(4, 3), 0.1, 0, torch.quint8), torch.zeros(4).long())] * 3"),  # noqa: E501
    "batch of nested tensors": _data("    return [(torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)]), torch.zeros(2).long())] * 3"),  # noqa: E501
    "batch on another device": _data("    return [(torch.ones(4, 3, device='meta'), torch.zeros(4).long())] * 3"),
    "batch of another type": _data("    return [(torch.ones(4, 3).int(), torch.zeros(4).long())] * 3"),
    "batches end early": _data(f"    class Once:\n        def __len__(self):\n            return 9\n\n        def __iter__(self):\n            return iter({_BATCHES})\n\n    return Once()"),  # noqa: E501
    "batches raise late": _data(f"    yield from {_BATCHES}\n    raise OSError('no more of the disk')"),
    # loss().
    "undefined in loss": _loss("    return losses(model(batch[0]), batch[1])"),
    "loss of none": _loss("    model(batch[0])"),
    "loss of a float": _loss("    return F.cross_entropy(model(batch[0]), batch[1]).item()"),
    "loss of an integer": _loss("    return (model(batch[0]).argmax(1) == batch[1]).sum()"),
    "loss of each sample": _loss("    return F.cross_entropy(model(batch[0]), batch[1], reduction='none')"),
    "loss without a gradient": _loss("    return F.cross_entropy(model(batch[0]), batch[1]).detach()"),
    "loss of a wrong shape": _loss("    return F.cross_entropy(model(batch[0]), batch[1][:2])"),
    "loss of a wrong type": _loss("    return F.cross_entropy(model(batch[0]), batch[1].float())"),
    "loss on another device": _loss("    return F.cross_entropy(model(batch[0]).to('meta'), batch[1])"),
    "loss not finite": _loss("    return F.cross_entropy(model(batch[0]), batch[1]) * float('nan')"),
    "loss asserts": _loss("    assert batch[1].dtype == torch.int8\n    return model(batch[0]).sum()"),
    "loss steps backward": _loss("    found = F.cross_entropy(model(batch[0]), batch[1])\n    found.backward()\n    return found"),  # noqa: E501
    "loss fails in a later step": _with("    return F", "    global steps\n    steps += model.training\n    if steps > 12:\n        raise ValueError('no more steps')\n    return F", "\nsteps = 0\n"),  # noqa: E501
    # evaluate(), optimizer().
    "undefined in evaluate": _evaluate("    return {'accuracy': accuracy(model)}"),
    "evaluate of none": _evaluate("    next(batches)") + "\nmetric = 'accuracy'\n",
    "evaluate of a text": _evaluate("    return {'accuracy': 'good'}"),
    "evaluate of another metric": _evaluate("    return {'loss': 1.0}") + "\nmetric = 'accuracy'\n",
    "evaluate of another shape": _evaluate("    return {'accuracy': sum(model(x)[:, :1] @ y for x, y in batches)}"),
    "evaluate exits": _evaluate("    raise SystemExit(0)") + "\nmetric = 'accuracy'\n",
    "undefined in optimizer": _optimizer("    return SGD(parameters)"),
    "optimizer of none": _optimizer("    torch.optim.SGD(parameters, lr=0.1)"),
    "optimizer of a text": _optimizer("    return 'sgd'"),
    "optimizer of a class": _optimizer("    return torch.optim.SGD"),
    "optimizer with a wrong rate": _optimizer("    return torch.optim.SGD(parameters, lr='fast')"),
    "optimizer step raises": _optimizer("    class Own(torch.optim.SGD):\n        def step(self, closure=None):\n            undefined\n\n    return Own(parameters, lr=0.1)"),  # noqa: E501
    "optimizer state raises": _optimizer("    class Own(torch.optim.SGD):\n        def state_dict(self):\n            undefined\n\n    return Own(parameters, lr=0.1)"),  # noqa: E501
    # neuron_groups(), samples().
    "undefined in neuron_groups": TASK + "\n\ndef neuron_groups(model):\n    return hidden\n",
    "undefined in samples": _data(f"    return {_BATCHES}") + "\n\ndef samples(batch):\n    return many\n",
    "samples of a text": _data(f"    return {_BATCHES}") + "\n\ndef samples(batch):\n    return 'many'\n",
}  # fmt: skip
