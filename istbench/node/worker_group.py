"""Groups of nodes that train parts of one run (`--elastic`): their samples, and their local steps.

A run of 4 nodes that goes on with 3 takes more local steps for as many samples. Its budget, its evaluations and its
schedule count steps of all nodes of the cell: such a step is as many samples as all of them take in a local step.
So a run ends after the same samples, whatever became of its nodes, and its learning rate falls as it would have.
"""

from dataclasses import asdict, dataclass

from istbench.base.options.run import RunConfig
from istbench.methods.base import Method
from istbench.node.checkpoint_steps import Totals, WorkerGroup
from istbench.workloads.base import Workload
from istbench.workloads.batches import Begin, ShardedBatches


def batches_of(
    group: WorkerGroup, rank: int, config: RunConfig, method: Method, workload: Workload
) -> ShardedBatches:
    """The minibatches of node `rank` of `group`."""
    shards = method.minibatches(group.nodes)
    return ShardedBatches(
        workload.train_size,
        config.batch_size,
        rank=rank % shards,
        world_size=shards,
        seed=config.seed,
        in_turn=workload.in_turn,
        samples=method.samples,
        begin=Begin(step=group.step, samples=group.samples, epoch=group.epoch, sample=group.sample),
    )


def next_group(totals: Totals, nodes: int, config: RunConfig, method: Method, workload: Workload) -> WorkerGroup:
    """The group of `nodes` nodes that goes on from a checkpoint with `totals`."""
    end = batches_of(totals.groups[-1], 0, config, method, workload).end(totals.step)
    return WorkerGroup(nodes=nodes, train_s=totals.train_s, **asdict(end))


@dataclass(frozen=True, kw_only=True)
class Pace:
    """The local steps of a group, and the steps of all nodes of the cell.

    Attributes:
        first, samples: the local step at which the group begins, and the samples before it.
        each, whole: samples of a local step of the group, and of all nodes of the cell.
    """

    first: int = 0
    samples: int = 0
    each: int = 1
    whole: int = 1

    @classmethod
    def of(cls, group: WorkerGroup, config: RunConfig, method: Method) -> "Pace":
        each, whole = (config.batch_size * method.minibatches(nodes) for nodes in (group.nodes, config.nodes))
        return cls(first=group.step, samples=group.samples, each=each, whole=whole)

    def done(self, step: int) -> int:
        """The steps of all nodes that `step` local steps amount to."""
        return self.samples_after(step) // self.whole

    def local(self, step: int) -> int:
        """The first local step after which `step` steps of all nodes are done."""
        return self.first + -(-(step * self.whole - self.samples) // self.each)

    def samples_after(self, step: int) -> int:
        """The samples that `step` local steps of the run took."""
        return self.samples + (step - self.first) * self.each


ALL_NODES = Pace()
"""The pace of a group of all nodes."""
