"""The communication of every method.

All network traffic of training passes through this file. So it counts bytes, sees the sequence of operations, and
names the operation and the missing ranks when a peer does not answer.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from istbench.base.activity import current
from istbench.cluster.collective import Backend
from istbench.cluster.collectives import bytes_on_wire
from istbench.cluster.in_turns import nodes_of_hosts, takes_turns
from istbench.cluster.trace_builder import not_empty, post_turns
from istbench.fabric.all_reduce import averaging, finish, gathering, mean_in_turns
from istbench.fabric.errors import FabricError, is_of_peers, timed_out
from istbench.fabric.exchanges import Exchanges, Turn, peers_by_turn, with_ranks
from istbench.fabric.heartbeats import hosts_by_rank
from istbench.fabric.pending import MeanInTurns, Pending, Transfers
from istbench.fabric.recorder import Recorder
from istbench.fabric.signed_store import SignedStore
from istbench.fabric.texts import Texts
from istbench.fabric.transport import Traffic, Transport


class Fabric:
    """Collectives and point-to-point transfers of one node.

    With NCCL, all collectives are NCCL's. gloo's all-gather and all-to-all leave a direction of the links idle for
    a third to a half of the time (results/bench.md). So without NCCL, all-gathers and reduce-scatters are exchanges
    in turns over the transport: each node sends one message and receives one at a time. Distant nodes exchange all
    at once, and so average models (`look_at_distance`).

    The fabric counts bytes by purpose: `training` for a method's exchanges, `assemble` for evaluation and
    checkpoints, `control` for the runner's own scalars. A collective counts the bytes that its algorithm sends from
    one node (for a ring all-reduce of M bytes, 2 M (n-1)/n each way). A transfer counts its payload.

    Attributes:
        rank, world_size: the rank of this node, and the number of nodes.
        device: the device of this node's tensors.
        several_hosts: whether the nodes run on more than one host. host_nodes: nodes of a host, in rank order; 1 if
            the hosts have different numbers, or before `look_at_distance`.
        far: whether the nodes are distant, so that means are taken in turns; see `look_at_distance`.
        timeout_s: of an operation. traffic: `Traffic` by purpose.
        recorder: the trace of this node's training.
        texts: short texts between ranks, not counted.
    """

    def __init__(
        self, store: SignedStore, device: torch.device, timeout_s: float, several_hosts: bool = False
    ) -> None:
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.several_hosts = several_hosts
        self.host_nodes = 1
        self.device = device
        self.traffic = {purpose: Traffic() for purpose in ("training", "assemble", "control")}
        self._purpose, self._recorded = "training", True
        self._store = store
        self.timeout_s = timeout_s
        self._operations = 0
        self.far = False
        self._meshes: dict[int, DeviceMesh] = {}
        hosts = hosts_by_rank(store, self.world_size) if several_hosts else ()
        self.texts = Texts(store, self.rank, self.world_size, timeout_s, hosts)
        if self.world_size > 1:
            self.texts.heartbeats.start()
        self.recorder = Recorder(device)
        self._nccl = dist.get_backend() == "nccl"
        # gloo's point-to-point messages and the transport's need host memory.
        self._stage_on_host = device.type == "cuda" and not self._nccl

    def mesh_of(self, nodes: int) -> DeviceMesh:
        """This node's group of `nodes` consecutive ranks as a mesh, for torch APIs that need one.

        Every rank must call this. Send nothing over the mesh: it is not counted.
        """
        if nodes not in self._meshes:
            group = dist.group.WORLD if nodes == self.world_size else dist.new_subgroups(nodes)[0]
            assert group is not None
            self._meshes[nodes] = DeviceMesh.from_group(group, self.device.type)
        return self._meshes[nodes]

    @contextmanager
    def accounting(self, purpose: str) -> Iterator[None]:
        """Count the bytes of the operations inside as `purpose`."""
        before, self._purpose = self._purpose, purpose
        try:
            yield
        finally:
            self._purpose = before

    # Collectives. Every rank must call them in the same order.

    def all_reduce_sum(self, tensor: Tensor, name: str = "all-reduce") -> None:
        """Replace `tensor` on every node by the sum over nodes, by gloo or NCCL at any distance.

        Methods take `all_reduce_mean`: replays at a distance have all all-reduces in turns.
        """
        op = self._post_collective("all_reduce", tensor.nbytes)
        with self._operation(name), self.recorder.waiting(op):
            dist.all_reduce(tensor)

    def all_reduce_mean(self, tensor: Tensor, name: str = "all-reduce") -> None:
        """Replace `tensor` on every node by the mean over nodes."""
        if self.far:
            self.finish_means(self.mean_in_turns(tensor, name))
        else:
            self.all_reduce_sum(tensor, name)
            tensor.div_(self.world_size)

    def start_mean(self, tensor: Tensor, name: str) -> Pending:
        """Start averaging `tensor` over nodes in place. It is complete after the wait."""
        if self.far:
            mean = self.mean_in_turns(tensor, name)
            return Pending(lambda: self.finish_means(mean))
        op = self._post_collective("all_reduce", tensor.nbytes)
        with self._operation(name):
            work = dist.all_reduce(tensor, async_op=True)
        return self._pending(op, work, name, lambda: tensor.div_(self.world_size))

    def mean_in_turns(self, tensor: Tensor, name: str) -> MeanInTurns:
        """Start averaging `tensor` over distant nodes in place; `finish_means` completes it.

        The trace has it as one all-reduce, so that a replay chooses the messages by its own distances.
        """
        op = self._post("all_reduce", tensor.nbytes)
        steps = mean_in_turns(self, tensor, name)
        with self._unrecorded():
            next(steps, None)
        return MeanInTurns(op, steps)

    def finish_means(self, *means: MeanInTurns) -> None:
        """Wait for `means`, all the while taking their steps in turn."""
        # Waits for messages count the seconds.
        with self.recorder.waiting(*(mean.op for mean in means), for_nodes=False), self._unrecorded():
            finish(*(mean.steps for mean in means))

    @contextmanager
    def _unrecorded(self) -> Iterator[None]:
        """Count the operations inside, and leave them out of the trace."""
        before, self._recorded = self._recorded, False
        try:
            yield
        finally:
            self._recorded = before

    def all_reduce_mean_async(self, tensor: Tensor, name: str) -> "torch.futures.Future[Tensor]":
        """Start averaging `tensor` over nodes in place, by torch; the future yields it.

        After waiting for all such futures, the caller calls `recorder.wait_all`.
        """
        if self.world_size > 1:  # one node saves a pass over all gradients
            tensor.div_(self.world_size)
        self._post_collective("all_reduce", tensor.nbytes)
        with self._operation(name):
            work = dist.all_reduce(tensor, async_op=True)
            assert work is not None
            return work.get_future().then(lambda done: done.value()[0])

    def all_gather_async(self, parts: Tensor, mine: Tensor, name: str) -> Pending:
        """Start to fill flat `parts` with every node's `mine`, all of one size, in rank order.

        `mine` may be this node's slice of `parts`. It must not change until the all-gather is complete.
        """
        op = self._post_collective("all_gather", mine.nbytes)
        with self._operation(name):
            if self._nccl:
                work = dist.all_gather_into_tensor(parts, mine, async_op=True)
                return self._pending(op, work, name)
            arriving = gathering(parts, mine, self.rank, self.world_size)
            leaving = [self._outgoing(mine)] * self.world_size
            return self._pending_exchange(op, leaving, arriving, name)

    def reduce_scatter_mean_async(self, mine: Tensor, parts: Tensor, name: str) -> Pending:
        """Start averaging flat `parts` over nodes; `mine` receives this node's part, the rank-th of n equal ones.

        Without NCCL, every part goes to its node, which adds them up in rank order. Until the end of the wait,
        `parts` must not change.
        """
        op = self._post_collective("reduce_scatter", parts.nbytes)
        with self._operation(name):
            if self._nccl:
                work = dist.reduce_scatter_tensor(mine, parts, async_op=True)
                return self._pending(op, work, name, lambda: mine.div_(self.world_size))
            leaving, arriving, average = averaging(mine, parts, self.rank, self.world_size)
            return self._pending_exchange(op, leaving, arriving, name, average)

    def broadcast_async(self, tensor: Tensor, root: int, name: str) -> Pending:
        """Start replacing `tensor` on every node by that of rank `root`."""
        return self.collective_async(
            "broadcast", tensor.nbytes, lambda: dist.broadcast(tensor, root, async_op=True), name, root
        )

    def collective_async(
        self, kind: str, size: int, start: Callable[[], Any], name: str, root: int | None = None
    ) -> Pending:
        """Start any other collective by `start()`, which calls torch.distributed and returns its work handle.

        kind: name of the entry of `istbench.cluster.collectives`, which counts its bytes and replays it.
        size: bytes of the tensor, as the entry counts them.
        """
        op = self._post_collective(kind, size, root)
        with self._operation(name):
            work = start()
        return self._pending(op, work, name)

    def numbers(self, value: float) -> list[float]:
        """Every node's `value`, by rank. Control traffic."""
        values = torch.zeros(self.world_size, dtype=torch.float64, device=self.device)
        values[self.rank] = value
        with self.accounting("control"):
            self.all_reduce_sum(values, "agreeing on a number")
        return [float(number) for number in values.tolist()]

    def maximum(self, value: float) -> float:
        """The largest `value` over nodes. Control traffic."""
        return max(self.numbers(value))

    def maxima(self, values: Tensor) -> Tensor:
        """The largest over nodes of each entry of `values`, on the host. Control traffic."""
        largest = values.to(self.device)
        with self.accounting("control"):
            self._post_collective("all_reduce", largest.nbytes)
            with self._operation("agreeing on numbers"):
                dist.all_reduce(largest, dist.ReduceOp.MAX)
        return largest.cpu()

    def total(self, value: float) -> float:
        """The sum of `value` over nodes. Control traffic."""
        return math.fsum(self.numbers(value))

    def barrier(self, name: str = "barrier") -> None:
        """Wait until every node has called this."""
        with self._operation(name):
            dist.barrier()

    # Point-to-point. Needs no global order.

    def exchange(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], name: str = "exchange") -> None:
        """Send one contiguous buffer to each peer in `sends` and fill each buffer in `receives`.

        Both ends must agree on the sizes. Empty buffers are skipped on both sides. Returns after the last transfer.
        """
        leaving, arriving = not_empty(sends), not_empty(receives)
        if not self._nccl:
            self._exchange_in_turns(leaving, arriving, name)
        elif leaving or arriving:
            self._start_by_nccl(leaving, arriving, name).wait()

    def exchange_among_all(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], name: str) -> None:
        """An `exchange` in which all ranks take part, in the same order of calls.

        Distant nodes send all messages at once: each turn would take a latency, and another one in which gloo's
        receiver announces itself.
        """
        if self.far:
            self.exchange_async(sends, receives, name).wait()
        else:
            self.exchange(sends, receives, name)

    def _exchange_in_turns(self, leaving: Mapping[int, Tensor], arriving: Mapping[int, Tensor], name: str) -> None:
        """In turn d, send to the rank d after this one and receive from the rank d before it.

        So a receiver gets one message at a time: gloo sends only to posted receives. With all messages at once, TCP
        shares the links unevenly, and the exchanges of four nodes took 10 to 25 % longer.
        """
        turns = [
            ({to: leaving[to]} if to in leaving else {}, {source: arriving[source]} if source in arriving else {})
            for to, source in peers_by_turn(self.rank, self.world_size)
        ]
        numbers = post_turns(turns, self._post_receive, self._post_send, both=True)
        with self.recorder.waiting(*numbers):
            for sent, received in turns:
                if sent or received:
                    self._take_turn(sent, received, name)

    def _take_turn(self, leaving: Mapping[int, Tensor], arriving: Mapping[int, Tensor], name: str) -> None:
        targets = {peer: self._incoming(buffer) for peer, buffer in arriving.items()}
        with self._operation(with_ranks(name, leaving, arriving)):
            # The receive first: gloo announces it on the connection of the data. After a send, the announcement
            # would follow the data, and the two directions would take turns.
            works = [dist.irecv(target, peer) for peer, target in targets.items()]
            works += [dist.isend(self._outgoing(buffer), peer) for peer, buffer in leaving.items()]
            for work in works:
                assert work is not None
                work.wait()
        if self._stage_on_host:
            for peer, target in targets.items():
                arriving[peer].copy_(target)

    def exchange_async(
        self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], name: str = "exchange"
    ) -> Transfers:
        """Start all transfers of an `exchange` at once, while training. All ranks must call it in the same order.

        Until the transfers are complete, do not read `receives` or change `sends`.
        """
        return self.exchange_in_turns_async([(sends, receives)], name)

    def _start_by_nccl(self, leaving: Mapping[int, Tensor], arriving: Mapping[int, Tensor], name: str) -> Transfers:
        """Start transfers from GPU to GPU in one group, which NCCL orders itself."""
        name = with_ranks(name, leaving, arriving)
        numbers = [self._post_receive(peer, buffer) for peer, buffer in arriving.items()]
        numbers += [self._post_send(peer, buffer) for peer, buffer in leaving.items()]
        operations = [dist.P2POp(dist.irecv, buffer, peer) for peer, buffer in arriving.items()]
        operations += [dist.P2POp(dist.isend, buffer, peer) for peer, buffer in leaving.items()]
        with self._operation(name):
            works = dist.batch_isend_irecv(operations) if operations else []

        def complete() -> None:
            with self._explained(name):
                for work in works:
                    work.wait()
            operations.clear()  # until here they keep the sent buffers alive

        return Transfers(complete, self.recorder, numbers)

    def exchange_in_turns_async(self, turns: Sequence[Turn], name: str) -> Transfers:
        """Start an `exchange_async` in turns: a message leaves after those of the turn before, both ways.

        Without NCCL, over the transport: gloo's own messages made streaming no faster (results/bench.md).
        """
        turns = [(not_empty(leaving), not_empty(arriving)) for leaving, arriving in turns]
        all_leaving = {peer: buffer for leaving, _ in turns for peer, buffer in leaving.items()}
        all_arriving = {peer: buffer for _, arriving in turns for peer, buffer in arriving.items()}
        if self._nccl:
            return self._start_by_nccl(all_leaving, all_arriving, name)
        numbers = post_turns(turns, self._post_receive, self._post_send)
        complete = self._begin(turns, with_ranks(name, all_leaving, all_arriving))
        return Transfers(complete, self.recorder, numbers)

    def _begin(self, turns: Sequence[Turn], name: str) -> Callable[[], None]:
        """Start an exchange over the transport; the returned function waits until it is complete."""
        if self.world_size == 1:
            return lambda: None
        staged = [
            (
                {peer: self._outgoing(buffer) for peer, buffer in leaving.items()},
                {peer: self._incoming(buffer) for peer, buffer in arriving.items()},
            )
            for leaving, arriving in turns
        ]
        number = self._exchanges.begin(staged)

        def missing() -> set[int]:
            return self._exchanges.missing(number)

        def complete() -> None:
            self.wait_for_messages(lambda: not missing(), missing, name)
            if self._stage_on_host:
                for (_, targets), (_, arriving) in zip(staged, turns, strict=True):
                    for peer, target in targets.items():
                        arriving[peer].copy_(target)

        return complete

    def look_at_distance(self, dilation: float = 1.0) -> None:
        """Average by exchanges in turns from now on, if nodes are distant. Every rank must call this.

        Near nodes keep gloo's all-reduce, and nodes with NCCL its own. `dilation` is that of the lab.
        """
        if self.world_size > 1 and not self._nccl:
            self.far = takes_turns(self.maximum(self.transport.round_trip_s()) / dilation, "gloo")
            sizes = self.numbers(int(os.environ.get("LOCAL_WORLD_SIZE", self.world_size)))
            self.host_nodes = nodes_of_hosts(map(int, sizes), self.world_size)

    def prepare_exchange_async(self) -> None:
        """Open the connections for `exchange_async` before the clock starts; every rank must call this."""
        if self.world_size > 1 and not self._nccl:
            _ = self._exchanges

    @cached_property
    def _exchanges(self) -> Exchanges:
        return Exchanges(self.transport)

    def _post_receive(self, peer: int, buffer: Tensor, after: Sequence[int] = ()) -> int:
        self.traffic[self._purpose].received += buffer.nbytes
        return self._post("receive", buffer.nbytes, peer, after)

    def _post_send(self, peer: int, buffer: Tensor, after: Sequence[int] = ()) -> int:
        self.traffic[self._purpose].sent += buffer.nbytes
        return self._post("send", buffer.nbytes, peer, after)

    def gather_to_zero(
        self, mine: Tensor, sizes: Sequence[int], name: str = "gather"
    ) -> Iterator[tuple[int, Tensor]]:
        """Send every node's flat buffer `mine` to rank 0, which yields (rank, buffer) in rank order.

        `sizes` is the number of elements of every node's buffer. Rank 0 holds one other buffer at a time. The other
        ranks yield nothing, but must run the loop.
        """
        if self.rank != 0:
            self.exchange({0: mine}, {}, name)
            return
        yield 0, mine
        for peer in range(1, self.world_size):
            buffer = mine.new_empty(sizes[peer])
            self.exchange({}, {peer: buffer}, name)
            yield peer, buffer

    # Messages in the background, by priority.

    @cached_property
    def transport(self) -> Transport:
        """Connections to all peers beside the process group's. Every rank must use it. Bytes count as training."""
        with self._operation("connecting to all ranks"):
            return Transport(self._store, self.rank, self.world_size, self.timeout_s, self.traffic["training"])

    @property
    def uses_transport(self) -> bool:
        """Whether the transport carries messages. Its connections alone tell how far the peers are."""
        return "transport" in vars(self) and self.transport.has_channels

    def wait_for_messages(self, done: Callable[[], bool], awaited: Callable[[], Iterable[int]], name: str) -> None:
        """Wait until `done()`; see `Transport.wait`."""
        self._operations += 1
        try:
            with current.waiting(name):
                self.transport.wait(done, awaited)
        except OSError as error:
            raise self._explain(name, error) from error

    def close(self) -> None:
        """Send the queued messages and leave the process group."""
        self.texts.heartbeats.stop()
        if "transport" in vars(self):
            self.transport.close()
        dist.destroy_process_group()

    def _outgoing(self, buffer: Tensor) -> Tensor:
        return buffer.cpu() if self._stage_on_host else buffer

    def _incoming(self, buffer: Tensor) -> Tensor:
        return torch.empty_like(buffer, device="cpu") if self._stage_on_host else buffer

    def _post_collective(self, kind: str, size: int, root: int | None = None) -> int:
        """Count and record a collective of `size` bytes; returns its number in the record."""
        traffic = self.traffic[self._purpose]
        backend: Backend = "nccl" if self._nccl else "gloo"
        place = (self.rank - (root or 0)) % self.world_size
        sent, received = bytes_on_wire(kind, size, self.world_size, place, backend)
        traffic.sent += sent
        traffic.received += received
        return self._post(kind, size, root)

    def _pending_exchange(
        self,
        op: int,
        leaving: Sequence[Tensor],
        arriving: Sequence[Tensor],
        name: str,
        finish: Callable[[], object] = lambda: None,
    ) -> Pending:
        """A handle for a collective: what goes to each rank, and the buffers of what comes from it.

        Distant nodes send all messages at once, as each turn would take a latency.
        """
        pairs = peers_by_turn(self.rank, self.world_size)
        together = [pairs] if self.far else [[pair] for pair in pairs]
        turns = [
            (
                not_empty({to: leaving[to] for to, _ in of}),
                not_empty({source: arriving[source] for _, source in of}),
            )
            for of in together
        ]
        complete = self._begin(turns, name)

        def wait() -> None:
            with self.recorder.waiting(op):
                complete()
            finish()

        return Pending(wait)

    def _pending(self, op: int, work: Any, name: str, finish: Callable[[], object] = lambda: None) -> Pending:
        """A handle for `work`. After the wait it calls `finish`."""

        def wait() -> None:
            with self._explained(name), self.recorder.waiting(op):
                work.wait()
            finish()

        return Pending(wait)

    def _post(self, kind: str, count: int, peer: int | None = None, after: Sequence[int] = ()) -> int:
        if self._purpose != "training" or not self._recorded:
            return -1
        return self.recorder.post(kind, count, () if peer is None else (peer,), 0, after)

    @contextmanager
    def _operation(self, name: str) -> Iterator[None]:
        """Count an operation. All operations pass here, in order."""
        self._operations += 1
        with self._explained(name):
            yield

    @contextmanager
    def naming_peers(self) -> Iterator[None]:
        """Name the missing ranks in errors of the process group elsewhere, as in a backward pass."""
        try:
            yield
        except RuntimeError as error:
            if not is_of_peers(error):
                raise
            raise self._explain(current.look().phase, error) from error

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        try:
            with current.waiting(name):
                yield
        except (RuntimeError, OSError) as error:  # OSError: of the transport's connections
            raise self._explain(name, error) from error

    def _explain(self, name: str, error: Exception) -> FabricError:
        where = f"{self.texts.heartbeats.named(self.rank)} in {name} (operation {self._operations})"
        late = timed_out(error)
        missing = self.texts.who_is_missing(self._operations, late)
        if late:
            return FabricError(f"{where} gave up after {self.timeout_s:g} s: {missing or 'all ranks wait'}")
        return FabricError(f"{where} lost a connection: {missing or str(error).splitlines()[0]}")
