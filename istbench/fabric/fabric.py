"""What every method talks through.

Because nothing crosses the network but through here, this is the one place that counts bytes, names the
operation and the rank when a peer does not answer, and sees the whole sequence of operations.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from istbench.activity import current
from istbench.cluster.collectives import bytes_on_wire
from istbench.fabric.errors import FabricError, is_of_peers, timed_out
from istbench.fabric.exchanges import Exchanges, not_empty, with_ranks
from istbench.fabric.pending import Pending, Transfers
from istbench.fabric.pulse import hosts_by_rank
from istbench.fabric.recorder import Recorder
from istbench.fabric.signed_store import SignedStore
from istbench.fabric.traffic import Traffic
from istbench.fabric.transport import Transport
from istbench.fabric.words import Words


class Fabric:
    """Collectives and point-to-point transfers of one node.

    Bytes are counted by purpose: `training` is what a method exchanges to learn, `assemble` what is moved to
    evaluate or save, `control` the runner's own few scalars. A collective counts what its algorithm puts on the
    wire of one node (round a ring 2 M (n-1)/n each way for an all-reduce of M bytes), a transfer its payload.

    Attributes:
        rank, world_size: this node and how many there are.
        device: where this node's tensors live.
        several_hosts: whether the nodes are on more than one.
        traffic: `Traffic` by purpose.
        recorder: the trace of this node's training.
        words: what nodes tell one another beside tensors, not counted.

    `latency_s` is waited for every message, one after another in a collective: for networks that are really shaped
    but in their latency.
    """

    def __init__(
        self,
        store: SignedStore,
        device: torch.device,
        timeout_s: float,
        latency_s: float = 0.0,
        several_hosts: bool = False,
    ) -> None:
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.several_hosts = several_hosts
        self.device = device
        self.traffic = {purpose: Traffic() for purpose in ("training", "assemble", "control")}
        self._purpose = "training"
        self._store = store
        self._timeout_s = timeout_s
        self._latency_s = latency_s
        self._operations = 0
        hosts = hosts_by_rank(store, self.world_size) if several_hosts else ()
        self.words = Words(store, self.rank, self.world_size, timeout_s, hosts)
        if self.world_size > 1:
            self.words.pulse.start()
        self.recorder = Recorder(device)
        # gloo moves point-to-point messages from host memory only.
        self._stage_on_host = device.type == "cuda" and dist.get_backend() == "gloo"

    @cached_property
    def mesh(self) -> DeviceMesh:
        """All nodes, for what of torch asks for a mesh. Nothing may be moved over it: that would go uncounted."""
        assert dist.group.WORLD is not None
        return DeviceMesh.from_group(dist.group.WORLD, self.device.type)

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
        """Replace `tensor` on every node by the sum over nodes."""
        op = self._post_collective("all_reduce", tensor.nbytes)
        with self._operation(name), self.recorder.waiting(op):
            dist.all_reduce(tensor)
            self._delay(self._ring_messages)

    def all_reduce_mean(self, tensor: Tensor, name: str = "all-reduce") -> None:
        """Replace `tensor` on every node by the mean over nodes."""
        self.all_reduce_sum(tensor, name)
        tensor.div_(self.world_size)

    def all_reduce_mean_async(self, tensor: Tensor, name: str) -> "torch.futures.Future[Tensor]":
        """Start averaging `tensor` over nodes in place; the future yields it when done.

        Once the caller has waited for all such futures, it says so by `recorder.wait_all`.
        """
        if self.world_size > 1:  # a pass over all gradients, which one node need not make
            tensor.div_(self.world_size)
        self._post_collective("all_reduce", tensor.nbytes)
        with self._operation(name):
            work = dist.all_reduce(tensor, async_op=True)
            assert work is not None
            return work.get_future().then(self._delayed_value)

    def all_gather_async(self, parts: Tensor, mine: Tensor, name: str) -> Pending:
        """Start filling flat `parts` with every node's `mine`, all of one size, in rank order.

        `mine` may be this node's own place in `parts`.
        """
        op = self._post_collective("all_gather", mine.nbytes)
        with self._operation(name):
            work = dist.all_gather_into_tensor(parts, mine, async_op=True)
        return self._pending(op, work, name, self.world_size - 1)

    def reduce_scatter_mean_async(self, mine: Tensor, parts: Tensor, name: str) -> Pending:
        """Start averaging flat `parts` over nodes; `mine` is to hold this node's part of the mean, of n equal ones.

        By gloo the parts go to their nodes, which add them up themselves: its own reduce-scatter is an all-reduce,
        and sends twice as much.
        """
        op = self._post_collective("reduce_scatter", parts.nbytes)
        arrived = parts.new_empty(self.world_size, mine.numel()) if dist.get_backend() == "gloo" else None
        with self._operation(name):
            if arrived is None:
                work = dist.reduce_scatter_tensor(mine, parts, async_op=True)
            else:
                work = dist.all_to_all_single(arrived.view(-1), parts, async_op=True)

        def finish() -> None:
            if arrived is not None:
                torch.sum(arrived, 0, out=mine)
            mine.div_(self.world_size)

        return self._pending(op, work, name, self.world_size - 1, finish)

    def broadcast_async(self, tensor: Tensor, root: int, name: str) -> Pending:
        """Start replacing `tensor` on every node by that of rank `root`."""
        op = self._post_collective("broadcast", tensor.nbytes, root)
        with self._operation(name):
            work = dist.broadcast(tensor, root, async_op=True)
        return self._pending(op, work, name, (self.world_size - 1).bit_length())

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

    def total(self, value: float) -> float:
        """The sum of `value` over nodes. Control traffic."""
        return math.fsum(self.numbers(value))

    def barrier(self, name: str = "barrier") -> None:
        """Wait until every node is here."""
        with self._operation(name):
            dist.barrier()

    # Point-to-point. Needs no global order.

    def exchange(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], name: str = "exchange") -> None:
        """Send one contiguous buffer to each peer in `sends` and fill each buffer in `receives`.

        Both ends must agree on the sizes; empty buffers are skipped on both sides. Returns when every transfer
        is complete.
        """
        leaving, arriving = not_empty(sends), not_empty(receives)
        if dist.get_backend() != "nccl":
            self._exchange_in_turns(leaving, arriving, name)
        elif leaving or arriving:
            self._start_by_nccl(leaving, arriving, name).wait()

    def _exchange_in_turns(self, leaving: Mapping[int, Tensor], arriving: Mapping[int, Tensor], name: str) -> None:
        """In turn d, send to the rank d after this one and receive from the rank d before it.

        A receiver takes one message at a time: gloo sends nothing that is not asked for. All at once, TCP shares
        the links unevenly and some are done before others: four nodes' exchanges took 10 to 25 % longer.
        """
        for distance in range(1, self.world_size):
            to, source = (self.rank + distance) % self.world_size, (self.rank - distance) % self.world_size
            peers = sorted(({to} & leaving.keys()) | ({source} & arriving.keys()))
            if not peers:
                continue
            works, numbers = [], []
            target = self._incoming(arriving[source]) if source in arriving else None
            with self._operation(f"{name} with ranks {', '.join(map(str, peers))}"):
                # The receive first: gloo announces it on the connection that carries the data, so that one
                # posted after a send would be announced behind it, and the two directions would take turns.
                if target is not None:
                    numbers.append(self._post_receive(source, target))
                    works.append(dist.irecv(target, source))
                if to in leaving:
                    numbers.append(self._post_send(to, leaving[to]))
                    works.append(dist.isend(self._outgoing(leaving[to]), to))
                with self.recorder.waiting(*numbers):
                    for work in works:
                        assert work is not None
                        work.wait()
                    self._delay(1)
            if target is not None and self._stage_on_host:
                arriving[source].copy_(target)

    def exchange_async(
        self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], name: str = "exchange"
    ) -> Transfers:
        """Start what `exchange` does, all at once, while training. All ranks must, in the same order.

        Nothing of `receives` may be read until it is complete, and what is sent not be changed at all.
        """
        start = self._start_by_nccl if dist.get_backend() == "nccl" else self._start_by_transport
        return start(not_empty(sends), not_empty(receives), name)

    def _start_by_nccl(self, leaving: Mapping[int, Tensor], arriving: Mapping[int, Tensor], name: str) -> Transfers:
        """From GPU to GPU, as NCCL wants it: all in one group, which it orders itself."""
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
            operations.clear()  # until here they keep what is sent

        return Transfers(complete, self.recorder, numbers)

    def _start_by_transport(
        self, leaving: Mapping[int, Tensor], arriving: Mapping[int, Tensor], name: str
    ) -> Transfers:
        """From host memory. By gloo's own messages streaming was as fast at best: results/bench.md."""
        name = with_ranks(name, leaving, arriving)
        # The transport counts them.
        numbers = [self._post("receive", buffer.nbytes, peer) for peer, buffer in arriving.items()]
        numbers += [self._post("send", buffer.nbytes, peer) for peer, buffer in leaving.items()]
        targets = {peer: self._incoming(buffer) for peer, buffer in arriving.items()}
        number = self._exchanges.begin({peer: self._outgoing(buffer) for peer, buffer in leaving.items()}, targets)

        def missing() -> set[int]:
            return self._exchanges.missing(number, targets)

        def complete() -> None:
            self.wait_for_messages(lambda: not missing(), missing, name)
            for peer, target in targets.items():
                if target is not arriving[peer]:
                    arriving[peer].copy_(target)

        return Transfers(complete, self.recorder, numbers)

    def prepare_exchange_async(self) -> None:
        """Connect what `exchange_async` moves over, ahead of the clock; every rank must call this."""
        if dist.get_backend() != "nccl":
            _ = self._exchanges

    @cached_property
    def _exchanges(self) -> Exchanges:
        return Exchanges(self.transport)

    def _post_receive(self, peer: int, buffer: Tensor) -> int:
        self.traffic[self._purpose].received += buffer.nbytes
        return self._post("receive", buffer.nbytes, peer)

    def _post_send(self, peer: int, buffer: Tensor) -> int:
        self.traffic[self._purpose].sent += buffer.nbytes
        return self._post("send", buffer.nbytes, peer)

    def gather_to_zero(
        self, mine: Tensor, sizes: Sequence[int], name: str = "gather"
    ) -> Iterator[tuple[int, Tensor]]:
        """Hand every node's flat buffer `mine` to rank 0, which yields (rank, buffer) in rank order.

        `sizes` is the number of elements of every node's buffer. Rank 0 holds one buffer of another node at a
        time. The other ranks yield nothing, but must run the loop.
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
        """Connections to all peers beside the process group's; every rank must ask for it. Counts as training."""
        with self._operation("connecting to all ranks"):
            return Transport(
                self._store, self.rank, self.world_size, self._timeout_s, self.traffic["training"], self._latency_s
            )

    @property
    def uses_transport(self) -> bool:
        """Whether anything asked for the transport."""
        return "transport" in vars(self)

    def wait_for_messages(self, done: Callable[[], bool], awaited: Callable[[], Iterable[int]], name: str) -> None:
        """Return once `done()`; see `Transport.wait`."""
        self._operations += 1
        try:
            with current.waiting(name):
                self.transport.wait(done, awaited)
        except OSError as error:
            raise self._explain(name, error) from error

    def close(self) -> None:
        """Send what is queued, and leave the process group."""
        self.words.pulse.stop()
        if self.uses_transport:
            self.transport.close()
        dist.destroy_process_group()

    @property
    def _ring_messages(self) -> int:
        """Messages one after another in a ring all-reduce."""
        return 2 * (self.world_size - 1)

    def _delay(self, messages: int) -> None:
        if self._latency_s:
            time.sleep(messages * self._latency_s)

    def _delayed_value(self, done: "torch.futures.Future[list[Tensor]]") -> Tensor:
        """Runs on the thread of the collective, which takes on no other while it sleeps."""
        self._delay(self._ring_messages)
        return done.value()[0]

    def _outgoing(self, buffer: Tensor) -> Tensor:
        return buffer.cpu() if self._stage_on_host else buffer

    def _incoming(self, buffer: Tensor) -> Tensor:
        return torch.empty_like(buffer, device="cpu") if self._stage_on_host else buffer

    def _post_collective(self, kind: str, size: int, root: int | None = None) -> int:
        """Count and record a collective of `size` bytes; returns its number in the record."""
        traffic = self.traffic[self._purpose]
        sent, received = bytes_on_wire(kind, size, self.world_size, (self.rank - (root or 0)) % self.world_size)
        traffic.sent += sent
        traffic.received += received
        return self._post(kind, size, root)

    def _pending(
        self, op: int, work: Any, name: str, messages: int, finish: Callable[[], object] = lambda: None
    ) -> Pending:
        """`work`, of so many messages one after another, as something to wait for; `finish` is called then."""

        def delayed(done: Any) -> None:
            done.value()  # raises what went wrong
            self._delay(messages)

        done = work.get_future().then(delayed) if self._latency_s else work

        def wait() -> None:
            with self._explained(name), self.recorder.waiting(op):
                done.wait()
            finish()

        return Pending(wait)

    def _post(self, kind: str, count: int, peer: int | None = None) -> int:
        if self._purpose != "training":
            return -1
        return self.recorder.post(kind, count, () if peer is None else (peer,))

    @contextmanager
    def _operation(self, name: str) -> Iterator[None]:
        """Every operation passes here, in order: the place to observe them."""
        self._operations += 1
        with self._explained(name):
            yield

    @contextmanager
    def naming_peers(self) -> Iterator[None]:
        """Name the missing ranks in errors of the process group outside its operations, as in a backward pass."""
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
        where = f"{self.words.pulse.named(self.rank)} in {name} (operation {self._operations})"
        late = timed_out(error)
        missing = self.words.who_is_missing(self._operations, late)
        if late:
            return FabricError(f"{where} gave up after {self._timeout_s:g} s: {missing or 'all ranks wait'}")
        return FabricError(f"{where} lost a connection: {missing or str(error).splitlines()[0]}")
