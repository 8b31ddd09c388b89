"""Where the parts of a resumed run have been."""

import msgspec
from fake_runs import header, resume, start

from istbench.base.decode import decode_own
from istbench.results.events import RunPart
from istbench.results.header import Git, Header, HostRecord
from istbench.results.run_parts import changes, parts

HEADER = msgspec.convert(header(), Header, dec_hook=decode_own)
VERSIONS = HEADER.versions
HERE = RunPart(host=HEADER.host, threads=1, versions=VERSIONS, git=None)
THERE = RunPart(
    host=HostRecord(name="server", cores=64, machine=""), threads=1, versions={**VERSIONS, "torch": "2.12.0"},
    git=Git("a" * 40, True),
)  # fmt: skip


def test_a_run_in_one_place_has_nothing_to_say():
    assert changes([start(part=HERE)]) == []
    assert changes([start(part=HERE), resume(10, part=HERE)]) == []


def test_another_machine_and_other_versions_are_named_with_the_step():
    assert changes([start(part=HERE), resume(10, part=THERE), resume(30, part=HERE)]) == [
        "resumed on another machine: laptop (8 cores, x86_64), from step 10 on server (64 cores), "
        "from step 30 on laptop (8 cores, x86_64)",
        "resumed with other versions: istbench 0.1.0 python 3.11.9 torch 2.11.0, "
        "from step 10 on istbench 0.1.0 python 3.11.9 torch 2.12.0, "
        "from step 30 on istbench 0.1.0 python 3.11.9 torch 2.11.0",
    ]
    clean = msgspec.structs.replace(THERE, git=Git("b" * 40, False))
    assert changes([start(part=THERE), resume(7, part=clean)]) == [
        f"resumed from another source tree: {'a' * 12} with changes, from step 7 on {'b' * 12}"
    ]


def test_parts_of_which_nothing_is_left_do_not_count():
    assert parts([start(part=THERE), resume(-1, part=HERE)]) == [(0, HERE)]
    started = [start(part=HERE), resume(10, part=THERE)]
    assert parts([*started, resume(10, part=HERE)]) == [(0, HERE), (10, HERE)]


def test_other_threads_are_named_with_the_step():
    wider = msgspec.structs.replace(HERE, threads=4)
    assert changes([start(part=HERE), resume(7, part=wider)]) == [
        "resumed with other threads a node: 1, from step 7 on 4"
    ]
