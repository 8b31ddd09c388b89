"""What ranks on several hosts are refused for before training, and what ended them all: no processes."""

import json
from pathlib import Path

import msgspec
import pytest

from istbench.base.decode import encode_json, encode_own
from istbench.base.errors import RunFailed, UserError
from istbench.base.options.run import RunRequest
from istbench.launch.cells.resolve import prepare_cell
from istbench.launch.processes.failures import WorkerLost
from istbench.launch.processes.world import this_world
from istbench.launch.torchrun.meeting import Card, Ending
from istbench.launch.torchrun.workers import (
    agreed,
    announced,
    cause_of,
    check_agreement,
    command_as_text,
    host_names,
    of_this_rank,
)

VERSIONS = {"istbench": "1.0", "torch": "2.9.1", "python": "3.11.4"}
FIRST = Card(
    rank=0, host="a", address="10.0.0.1", versions=VERSIONS, fingerprint="f" * 64,
    config=json.dumps({"steps": 20, "threads": 4, "plugins": ["/a/own.py"]}),
)  # fmt: skip
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none", "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500",
}  # fmt: skip


def second(**fields):
    return msgspec.structs.replace(FIRST, rank=1, **{"host": "b", "address": "10.0.0.2", **fields})


def test_hosts_may_differ_in_threads_where_plugins_lie_and_patches_of_python():
    own = {"steps": 20, "threads": 2, "plugins": ["/b/own.py"]}
    check_agreement([FIRST, second(config=json.dumps(own), versions={**VERSIONS, "python": "3.11.9"})])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"versions": {**VERSIONS, "torch": "2.8.0"}}, "b has torch 2.8.0 (2.9.1 on a); install the same"),
        ({"versions": {**VERSIONS, "python": "3.12.1"}}, r"b has python 3.12 \(3.11 on a\)"),
        ({"versions": {"istbench": "0.9"}}, r"b has istbench 0.9 \(1.0 on a\), torch none"),
        ({"config": '{"steps": 30, "threads": 4}'}, "steps is 30 on b and 20 on a; give the same command"),
        ({"config": '{"threads": 4}'}, "steps is None on b and 20 on a"),
        (
            {"config": "[1]"},
            r"the command of b: it must be a table, not \[1\]; install the same istbench on every host",
        ),
        ({"config": "{"}, "the command of b: not JSON"),
        ({"fingerprint": "0" * 64}, "b and a have different data"),
        ({"own_gpu": True}, "b has a GPU for every process, and a does not; use --device cpu"),
        ({"address": "127.0.1.1"}, "b reaches the rendezvous endpoint by its loopback interface"),
        ({"host": "a", "fingerprint": "0" * 64}, r"a \(10.0.0.2\) and a \(10.0.0.1\) have different data"),
    ],
)
def test_what_differs_is_said_by_host(fields, said):
    with pytest.raises(UserError, match=said.replace("2.8.0 (2.9.1 on a)", r"2.8.0 \(2.9.1 on a\)")) as refused:
        check_agreement([FIRST, second(**fields)])
    assert len(str(refused.value).splitlines()) == 1


def test_the_cell_has_threads_that_every_host_has_cores_for_and_the_hosts_names():
    cell = prepare_cell(RunRequest(workload="toy", method="ist", nodes=2, threads=1), lambda *_: None)
    more = msgspec.structs.replace(cell.config, threads=8)
    cards = [Card(rank=rank, host=f"h{rank}", config=encode_json(more).decode()) for rank in (0, 1, 2)]
    found = agreed(
        cell, [*cards, msgspec.structs.replace(cards[2], rank=3, config=encode_json(cell.config).decode())]
    )
    assert (found.config, found.cell) == (cell.config, cell.cell)
    assert (found.host.name, found.cell) == ("h0, h1, h2", cell.cell)
    wider = agreed(cell, [msgspec.structs.replace(card, threads=8 + card.rank) for card in cards])
    assert (wider.threads, wider.cell, wider.config) == (8, cell.cell, cell.config)


def test_a_run_has_the_cores_of_all_its_hosts_each_counted_once():
    cell = prepare_cell(RunRequest(workload="toy", method="ist", nodes=3, threads=1), lambda *_: None)
    config = encode_json(cell.config).decode()
    cards = [Card(rank=0, host="a", address="10.0.0.1", config=config, cores=2)]
    alone = agreed(cell, [*cards, Card(rank=1, host="a", address="10.0.0.1", config=config, cores=2)]).host
    assert (alone.name, alone.cores, alone.count) == ("a", 2, 1)
    cards += [Card(rank=rank, host="b", address="10.0.0.2", config=config, cores=4) for rank in (1, 2)]
    together = agreed(cell, cards).host
    assert (together.name, together.cores, together.count) == ("a, b", 6, 2)
    unknown = agreed(cell, [*cards, Card(rank=3, host="c", config=config)]).host
    assert (unknown.cores, unknown.count) == (None, 3)


def test_hosts_of_one_name_are_told_apart_and_processes_of_one_host_are_not():
    cards = [FIRST, msgspec.structs.replace(FIRST, rank=1), second(host="b"), second(host="b", address="10.0.0.3")]
    assert host_names(cards) == ["a", "a", "b (10.0.0.2)", "b (10.0.0.3)"]


def word(kind, message=""):
    return Ending(kind=kind, message=message)


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        ([word("done"), word("done")], type(None), "None"),
        ([word("interrupted"), word("ended")], KeyboardInterrupt, ""),
        ([word("ended"), word("run", "worker 1 was killed")], RunFailed, "b: worker 1 was killed"),
        ([word("lost", "worker 0 failed"), word("user", "no space")], UserError, "b: no space"),
        ([word("lost", "worker 0 failed"), word("ended")], WorkerLost, "a: worker 0 failed"),
        ([word("lost", "worker 0 failed"), word("gone", "worker 1 was killed")], WorkerLost, "b: worker 1 was"),
        ([word("lost", "worker 0 failed")], WorkerLost, "b: worker 1 is gone"),
        ([word("interrupted")], WorkerLost, "b: worker 1 is gone"),
    ],
)
def test_one_rank_and_its_host_are_said_to_have_ended_a_run(words, kind, said):
    cause = cause_of(dict(enumerate(words)), ("a", "b"))
    assert type(cause) is kind
    assert str(cause).startswith(said)


def test_torchruns_environment_says_who_a_process_is():
    assert this_world({"RANK": "1", "WORLD_SIZE": "2"}) is None
    world = this_world(TORCHRUN)
    assert (world.rank, world.size, world.local_rank, world.host_rank) == (3, 4, 1, 1)


def test_a_cell_runs_on_the_first_processes_of_which_each_host_has_its_share():
    world = this_world(TORCHRUN)  # the second process of the second host, each with two
    assert [(world.first(nodes).size, world.first(nodes).local_size) for nodes in (1, 2, 3, 4)] == [
        (1, 0), (2, 0), (3, 1), (4, 2),
    ]  # fmt: skip
    with pytest.raises(UserError, match="5 nodes need as many processes, and torchrun started 4: start more"):
        world.first(5)


def test_commands_that_ask_for_other_cells_are_told_apart_and_their_files_may_differ():
    cells = [RunRequest(workload="toy", method=method, nodes=2, steps=20) for method in ("ist", "ddp")]
    asked = second(
        config=command_as_text([msgspec.structs.replace(cell, data=Path("b"), threads=2) for cell in cells])
    )
    first = msgspec.structs.replace(FIRST, config=command_as_text(cells))
    check_agreement([first, asked])
    for others, said in (
        (cells[:1], "number of cells is 1 on b and 2 on a; give the same command on every host"),
        ([msgspec.structs.replace(cell, steps=30) for cell in cells], "steps is 30 on b and 20 on a"),
        ([cells[0], msgspec.structs.replace(cells[0], seed=1)], r"method is 'ist' on b and \['ist', 'ddp'\] on a"),
    ):
        with pytest.raises(UserError, match=said):
            check_agreement([first, second(config=command_as_text(others))])


def test_ranks_take_the_options_of_a_cell_from_rank_0_and_files_from_their_own_command():
    own = RunRequest(workload="toy", method="ddp", plugins=("/b/own.py",), data=Path("/b"), threads=2)
    at_first = msgspec.structs.replace(
        own, plugins=("/a/own.py",), data=Path("/a"), save=Path("/a/w"), sinks=("mllog",)
    )
    cell = msgspec.structs.replace(at_first, method="ist", nodes=2, steps=7)
    found = announced(cell, [msgspec.structs.replace(at_first, data=None), at_first])
    assert found.like == 1
    assert "/a" not in msgspec.json.encode(found, enc_hook=encode_own).decode()
    assert of_this_rank(found, [cell, own]) == msgspec.structs.replace(own, method="ist", nodes=2, steps=7)
    with pytest.raises(UserError, match="^rank 0 trains cell 2 of its command, and this one has 1 cell; give"):
        of_this_rank(found, [own])


@pytest.mark.parametrize(
    "broken", [{"RANK": "first"}, {"MASTER_PORT": ""}, {"WORLD_SIZE": "0"}, {"GROUP_RANK": "-1"}]
)
def test_an_environment_that_is_only_half_torchruns_is_refused(broken):
    with pytest.raises(UserError, match=next(iter(broken))):
        this_world({**TORCHRUN, **broken})
