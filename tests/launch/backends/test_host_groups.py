"""`group=host` and `shard=host`: a number takes the place of `host` where a run knows its hosts."""

import pytest

from istbench.base.errors import UserError
from istbench.base.options.run import RunRequest
from istbench.launch.backends.here import Here
from istbench.launch.backends.hosts import Hosts
from istbench.launch.backends.torchrun import Torchrun
from istbench.launch.cells.resolve import prepare_cell
from istbench.launch.hosts.names import Host
from istbench.launch.processes.world import World

WORLD = World(rank=0, size=4, local_rank=0, local_size=2, host_rank=0, master="here", port=1)
PLACES = {
    "torchrun": Torchrun(world=WORLD),
    "ssh": Hosts(hosts=(Host("one", 2), Host("two", 2))),
}


def request(nodes=4, method="fsdp", **options):
    return RunRequest(workload="toy", method=method, method_options=options, nodes=nodes, steps=2)


def cell_name(of):
    return prepare_cell(of, lambda *_: None).cell


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize(("method", "option"), [("fsdp", "shard"), ("local_sgd", "group"), ("diloco", "group")])
def test_a_cell_has_the_number_of_nodes_of_a_host(place, method, option):
    told = place.fit(request(method=method, **{option: "host", "lr": "0.1"}))
    assert told.method_options == {option: 2, "lr": "0.1"}
    assert cell_name(told) == cell_name(request(method=method, **{option: "2", "lr": "0.1"}))
    assert place.fit(request(nodes=1, shard="host")).method_options == {"shard": 1}
    assert place.fit(request(shard="0")).method_options == {"shard": "0"}
    assert place.fit(request(method="of_a_plug_in", team="host")).method_options == {"team": 2}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_hosts_with_different_numbers_of_nodes(place):
    with pytest.raises(UserError, match="^shard=host needs as many nodes on every host, and these have 2, 1; use "):
        place.fit(request(nodes=3, shard="host"))


@pytest.mark.parametrize(
    ("method", "options", "says"),
    [
        (
            "fsdp",
            {"shard": "host"},
            "^shard=host: this run does not know how many nodes share a host; give",
        ),
        ("fsdp", {"shard": 3}, "^shard=3 does not divide 4 nodes into equal groups; use one of 1, 2, 4$"),
        ("fsdp", {"shard": 8}, "^shard=8 does not divide 4 nodes into equal groups"),
        ("fsdp", {"shard": 1}, "^shard=1 keeps the whole model on every node; use ddp, or a larger shard$"),
        ("fsdp", {"shard": "hosts"}, "option shard must be one of host, a whole number, not 'hosts'$"),
        ("fsdp", {"accumulate": 0}, "option accumulate must be a whole number of at least 1, not 0$"),
        ("diloco", {"group": "host"}, "^group=host: this run does not know"),
        ("local_sgd", {"group": 3}, "^group=3 does not divide 4 nodes"),
        ("noloco", {"group": 2}, "option 'group' of method 'noloco'"),
    ],
)
def test_groups_that_do_not_fit_are_refused_in_a_line(method, options, says):
    with pytest.raises(UserError, match=says) as refused:
        prepare_cell(Here().fit(request(method=method, **options)), lambda *_: None)
    assert "\n" not in str(refused.value)
