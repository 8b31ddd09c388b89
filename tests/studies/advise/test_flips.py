"""Where another candidate becomes first, against closed forms.

On two nodes a ring all-reduce of S bytes sends 2 messages of S / 2 one after the other, so a step of `often` takes
10 ms + 8 S / bandwidth + 2 latency. One of `rarely` takes 30 ms and a tenth of that.
"""

import dataclasses
import math

import pytest
from fake_runs import averaging_trace
from probes import LINKS, candidate, curve

from istbench.base.errors import UserError
from istbench.cluster.profile import ClusterProfile
from istbench.studies.advise.flips import find_flips
from istbench.studies.advise.odds import odds

SIZE = 1_000_000
OFTEN = candidate("often", size=SIZE)
RARELY = candidate("rarely", compute=0.03, local_steps=10, size=SIZE)
# Messages take no time of a processor, and connections have no window.
PLAIN = dataclasses.replace(LINKS, cores=None, backend="gloo", window_bytes=1e12, slow_start=False)
CROSSING = 8 * SIZE * 0.9 / 0.02


def flips_at(bandwidth, *candidates, **changed):
    profile = dataclasses.replace(PLAIN.with_bandwidth(bandwidth), **changed)
    return find_flips(odds(candidates, profile, 0.8).ranked, profile)


def test_the_bandwidth_where_computing_and_messages_weigh_equally():
    above = flips_at(4 * CROSSING, OFTEN, RARELY).bandwidth
    assert (above.side, above.first, above.reason, above.extrapolated) == ("below", "rarely", "", False)
    assert above.value == pytest.approx(CROSSING, rel=0.02)
    below = flips_at(CROSSING / 4, OFTEN, RARELY).bandwidth
    assert (below.side, below.first) == ("above", "often")
    assert below.value == pytest.approx(CROSSING, rel=0.02)


def test_the_bandwidth_of_links_like_here_counts_headers_as_the_option_does():
    class WithHeaders(ClusterProfile):
        payload = 0.5

    ranked = odds([OFTEN, RARELY], PLAIN.with_bandwidth(4 * CROSSING), 0.8).ranked
    found = find_flips(ranked, WithHeaders(**vars(PLAIN.with_bandwidth(4 * CROSSING)))).bandwidth
    assert found.value == pytest.approx(2 * CROSSING, rel=0.02)


def test_the_latency_that_many_exchanges_no_longer_bear():
    found = flips_at(1e12, OFTEN, RARELY).latency  # far away, one message at once
    assert (found.side, found.first) == ("above", "rarely")
    assert found.value == pytest.approx(0.02 / 0.9, rel=0.02)


def test_a_latency_that_keeps_the_faster_one_back_flips_below():
    found = flips_at(1e12, OFTEN, RARELY, latency_s=0.03).latency
    assert (found.side, found.first) == ("below", "often")
    assert found.value == pytest.approx(0.02 / 0.9, rel=0.02)


def dealt(compute):
    """Deals a candidate to n nodes, on each of which a step computes `compute(n)` seconds."""
    return lambda nodes: averaging_trace(nodes, compute=(compute(nodes),), size=8)


def test_the_number_of_nodes_from_which_another_is_first():
    growing = candidate("growing", compute=0.011 * 2, size=8, redealt=dealt(lambda nodes: 0.011 * nodes))
    constant = candidate("constant", compute=0.05, size=8, redealt=dealt(lambda nodes: 0.05))
    found = flips_at(1e12, growing, constant).nodes
    assert (found.value, found.side, found.first, found.extrapolated) == (5, "above", "constant", True)


def test_candidates_that_cannot_be_dealt_are_named():
    def refused(nodes):
        raise UserError("method odd does not say how its work changes with the nodes")

    steady = dealt(lambda nodes: 0.01)
    first = candidate("first", size=8, redealt=steady)
    second = candidate("second", compute=0.05, size=8, redealt=steady)
    odd = candidate("odd", compute=0.06, size=8, redealt=refused)
    found = flips_at(1e12, first, dataclasses.replace(second, redealt=dealt(lambda nodes: 0.05)), odd).nodes
    assert found.value is None
    assert found.reason == "first is first of the trained candidates from 2 to 8 nodes; without odd"
    found = flips_at(1e12, dataclasses.replace(first, redealt=refused), second).nodes
    assert found.value is None
    assert found.reason == "first: method odd does not say how its work changes with the nodes"
    found = flips_at(1e12, dataclasses.replace(first, redealt=None), second).nodes
    assert found.reason == "first cannot be dealt to other nodes"


def test_an_error_names_the_candidate_that_has_it():
    def odd(nodes):
        if nodes == 8:
            raise UserError("more nodes than hidden units")
        return averaging_trace(nodes, compute=(0.05,), size=8)

    first = candidate("first", size=8, redealt=dealt(lambda nodes: 0.01))
    found = flips_at(1e12, first, candidate("second", compute=0.05, size=8, redealt=odd)).nodes
    assert (found.value, found.reason) == (None, "second: more nodes than hidden units")


def test_no_flip_has_a_reason():
    slower = candidate("slower", compute=0.03)
    found = flips_at(8e8, OFTEN, slower)
    assert found.bandwidth.value is None
    assert found.bandwidth.reason == "often is first of the trained candidates from 8 Mbit/s to 80 Gbit/s"
    assert found.latency.reason == "often is first of the trained candidates from 0 to 1000 ms"
    flat = {0: curve([(step, 0.5) for step in range(0, 100, 10)])}
    alone = flips_at(8e8, OFTEN, candidate("flat", curves=flat))
    assert alone.bandwidth.reason == "no other trained candidate is expected to reach the target"
    nobody = flips_at(8e8, candidate("flat", curves=flat))
    assert nobody.nodes.reason == "nobody is expected to reach the target"


def test_close_candidates_of_which_another_is_faster_by_expected_seconds_have_no_flip():
    ranked = odds([OFTEN, RARELY], PLAIN, 0.8).ranked
    turned = find_flips(tuple(reversed(ranked)), PLAIN)
    assert turned.bandwidth.value is None
    assert turned.bandwidth.reason.startswith("too close: by expected seconds alone, ")
    assert all(math.isfinite(one.seconds) for one in ranked)
