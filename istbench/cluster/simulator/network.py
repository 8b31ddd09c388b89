"""The links of a cluster as arrays, and which of them a message crosses."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from istbench.cluster.profile import ClusterProfile
from istbench.cluster.trace import Floats, Ints


class Network(NamedTuple):
    """The links of a cluster of n nodes.

    Attributes:
        capacity, burst: of each link, bytes a second and bytes. The outgoing links of hosts come first, then the
            incoming ones if full duplex. Links of nodes inside hosts, out and in, uplinks of racks, out and in, and
            the backplane follow where the profile has them.
        node: by name, for each node [n], the links of its host, its rack and its own, out and in.
        backplane: number of the link that all hosts share; -1 without one.
        inside, between_racks: whether each connection is between nodes of one host, and of two racks [n * world],
            as `Program` names them.
    """

    capacity: Floats
    burst: Floats
    node: dict[str, Ints]
    backplane: int
    inside: NDArray[np.bool_]
    between_racks: NDArray[np.bool_]


def network_of(profile: ClusterProfile, n: int, world: int) -> Network:
    """The links between `n` nodes of `profile`, which stand for `world` nodes."""
    rate: list[float] = []
    burst: list[float] = []

    def add(links: int, bits_per_second: float, burst_bytes: float = profile.burst_bytes) -> int:
        rate.extend([bits_per_second / 8] * links)
        burst.extend([burst_bytes] * links)
        return len(rate) - links

    rank = np.arange(n)
    host = rank // profile.host_nodes
    link_out = link_in = add(int(host[-1]) + 1, profile.bandwidth_out) + host
    if profile.full_duplex:
        link_in = add(int(host[-1]) + 1, profile.bandwidth_in) + host
    node = {"link_out": link_out, "link_in": link_in}
    peer_host = (rank[:, None] + np.arange(world)) % world // profile.host_nodes
    inside = between_racks = np.zeros((n, world), np.bool_)
    if profile.host is not None:
        node["inside_out"] = add(n, profile.host.bandwidth, 0.0) + rank
        node["inside_in"] = add(n, profile.host.bandwidth, 0.0) + rank
        inside = peer_host == host[:, None]
    if profile.narrow_rack is not None:
        rack = host // profile.narrow_rack.hosts
        between_racks = peer_host // profile.narrow_rack.hosts != rack[:, None]
        node["uplink_out"] = add(int(rack[-1]) + 1, profile.narrow_rack.uplink) + rack
        node["uplink_in"] = add(int(rack[-1]) + 1, profile.narrow_rack.uplink) + rack
    backplane = -1 if profile.backplane is None else add(1, profile.backplane)
    return Network(np.array(rate), np.array(burst), node, backplane, inside.ravel(), between_racks.ravel())
