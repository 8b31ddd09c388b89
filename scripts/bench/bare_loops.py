"""The baseline of istbench's training steps: the same steps without istbench.

Run alone, it is a plain loop. Under torchrun, it uses torch's DistributedDataParallel as in its tutorial. With
`--method diloco` or `--method sparseloco` it is a short script of that method, with torch's collectives for each
parameter. It prints the seconds of STEPS steps after a warm-up, the maximum over ranks. As in istbench, the warm-up
has no exchange.

    python scripts/bench/bare_loops.py --hidden 16 --steps 1 --clips 12 --method sparseloco    # to try it
"""

import argparse
import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from istbench.base.cache import cache_directory
from istbench.workloads.speech import Speech, SpeechOptions
from istbench.workloads.speech_data.synthetic import CLIPS_PER_WORD

WARM_UP = 3
CHUNK, TOP, FEEDBACK = 4096, 32, 0.95


class DiLoCo:
    """The end of a round: the mean change is the gradient of an outer optimizer."""

    def __init__(self, model: nn.Module, *, lr: float = 0.7, momentum: float = 0.9) -> None:
        self.parameters = list(model.parameters())
        self.start = [nn.Parameter(parameter.detach().clone()) for parameter in self.parameters]
        self.outer = torch.optim.SGD(self.start, lr=lr, momentum=momentum, nesterov=momentum > 0)

    def __call__(self) -> None:
        """Step, and go on from there."""
        for number, (parameter, start) in enumerate(zip(self.parameters, self.start, strict=True)):
            start.grad = self.mean(number, start.detach() - parameter.detach())
        self.outer.step()
        with torch.no_grad():
            for parameter, start in zip(self.parameters, self.start, strict=True):
                parameter.copy_(start)

    def mean(self, number: int, change: Tensor) -> Tensor:
        """The mean `change` over nodes of parameter `number`."""
        if dist.is_initialized():
            dist.all_reduce(change)
            change /= dist.get_world_size()
        return change


class SparseLoCo(DiLoCo):
    """The largest changes of each chunk, averaged over the nodes that sent them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, lr=1.0, momentum=0.0)
        self.kept = [torch.zeros(-(-own.numel() // CHUNK), CHUNK) for own in self.parameters]

    def mean(self, number: int, change: Tensor) -> Tensor:
        """The mean over senders. What is not sent is kept."""
        rows = self.kept[number]
        rows.mul_(FEEDBACK).add_(F.pad(change.flatten(), (0, rows.numel() - change.numel())).view_as(rows))
        places = rows.abs().topk(TOP, dim=1).indices
        values = rows.gather(1, places)
        rows.scatter_(1, places, 0.0)
        nodes = dist.get_world_size() if dist.is_initialized() else 1
        of_nodes = (
            [torch.empty_like(values) for _ in range(nodes)],
            [torch.empty_like(places, dtype=torch.int16).view(torch.uint8) for _ in range(nodes)],
        )
        as_bytes = places.to(torch.int16).view(torch.uint8)  # gloo gathers no int16
        for gathered, own in zip(of_nodes, (values, as_bytes), strict=True):
            if nodes > 1:
                dist.all_gather(gathered, own)
            else:
                gathered[0] = own
        total, senders = torch.zeros_like(rows), torch.zeros_like(rows)
        for sent, at in zip(*of_nodes, strict=True):
            columns = at.view(torch.int16).long()
            total.scatter_add_(1, columns, sent)
            senders.scatter_add_(1, columns, torch.ones_like(sent))
        return (total / senders.clamp(min=1)).flatten()[: change.numel()].view_as(change)


ROUNDS: dict[str, Callable[[nn.Module], DiLoCo]] = {"diloco": DiLoCo, "sparseloco": SparseLoCo}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="ddp", choices=["ddp", *ROUNDS])
    parser.add_argument("--local-steps", type=int, default=20, help="local steps of a round")
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clips", type=int, default=CLIPS_PER_WORD, help="clips of a word")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    world_size, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    workload = Speech(SpeechOptions(hidden=arguments.hidden, clips_per_word=arguments.clips))
    if world_size > 1:
        dist.init_process_group("gloo")
    for turn in range(min(world_size, 2)):  # rank 0 prepares the data, which the others then find
        if turn == min(rank, 1):
            workload.open(workload.prepare(None, cache_directory(), lambda *_: None))
        if world_size > 1:
            dist.barrier()
    torch.manual_seed(0)
    model: nn.Module = workload.build_model()
    end_round = ROUNDS[arguments.method](model) if arguments.method in ROUNDS else lambda: None
    if world_size > 1 and arguments.method == "ddp":
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    for step in range(-WARM_UP, arguments.steps):
        if step == 0:
            if world_size > 1:
                dist.barrier()
            started = time.perf_counter()
        indices = torch.randint(workload.train_size, (workload.batch_size,), generator=generator)
        optimizer.zero_grad()
        loss = workload.loss(model, workload.train_batch(indices, generator))
        loss.backward()
        optimizer.step()
        if step >= 0 and (step + 1) % arguments.local_steps == 0:
            end_round()
    if arguments.steps % arguments.local_steps:
        end_round()
    seconds = torch.tensor(time.perf_counter() - started)
    if world_size > 1:
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    if rank == 0:
        print(f"{float(seconds):.4f}", flush=True)
    if world_size > 1:
        dist.barrier()
        os._exit(0)  # gloo's threads sometimes abort an interpreter that ends in order


if __name__ == "__main__":
    main()
