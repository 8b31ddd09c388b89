"""Every program of scripts/ runs, at the tiny size that its docstring shows.

A program's docstring has one line such as `python scripts/bench/memory.py --hidden 16    # to try it`. After a
comma, the line says who can run it: `as root` (network namespaces), or `on a GPU`. Words in capitals are paths that
`place_of` makes.
"""

import ast
import importlib
import itertools
import os
import re
import shlex
import signal
import sys
from pathlib import Path

import msgspec
import pytest
import ssh_hosts
import torch
from fake_runs import averaging_trace, header, ramp, write_run
from p3_runs import write_p3_runs

from istbench.base.errors import UserError
from istbench.launch.lab import network
from istbench.workloads.imagenet import ImageNetOptions
from istbench.workloads.neuron_groups.layout import layout_of

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "scripts").rglob("*.py"))
TRIED = re.compile(r"^ *python (.+?) +# to try it(?:, (as root|on a GPU))?$", re.MULTILINE)
TEXTS = {path: path.read_text() for path in [*FILES, *ROOT.glob("configs/**/*.toml")]}
PROGRAMS = [path for path in FILES if '\nif __name__ == "__main__":' in TEXTS[path]]
QUOTES = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/*.md"),
    *ROOT.glob("results/**/*.md"),
    *ROOT.glob("configs/**/*.toml"),
]
FAULT_TABLE = (
    "| kill -9 | training | 0 |",
    "- noticed in time: 1 of 1",
    "- ended with the digest of a run without a fault: 1 of 1",
    "- nothing left running: 1 of 1",
)
SAYS = {
    "fault_table": FAULT_TABLE,
    "hosts_show": ("| no Python | 2 | host0: no Python",),
    "utilisation": ("| 128 | 11.6 | ",),
}
"""By program, parts of its output."""
FROM_THE_START = {"early_interrupt", "startup", "stopped_processes"}
"""Programs that observe starts, or find processes by their words. Commands of others begin with torch imported."""

WITHOUT_LAB = {"fault_table", "hosts_profile", "hosts_show"}
"""Programs for root whose namespaces have names of this process: they wait for no lab."""
LABS = [path for path in PROGRAMS if "# to try it, as root" in TEXTS[path] and path.stem not in WITHOUT_LAB]
APART = {
    path: (place + 0.5) / len(group)
    for group in (LABS, [path for path in PROGRAMS if path not in LABS])
    for place, path in enumerate(group)
}
"""By program, its place in an order that has those with a lab apart, as they wait for one another."""


def tried(path):
    """The tiny commands in the docstring of a file: their words, and who can run them."""
    found = TRIED.findall(ast.get_docstring(ast.parse(TEXTS[path])) or "")
    return [(shlex.split(words), who) for words, who in found]


def config(head, **changed):
    """`head` with changed fields of its config."""
    return {**head, "config": {**head["config"], **changed}}


def write_slide_curves(results):
    events = [
        msgspec.structs.replace(event, metrics={"precision@1": event.step / 150, "active_outputs": 30.0})
        for event in ramp(9.0)
    ]
    write_run(results, header("dslide", workload="amazon670k", budget="2 epochs"), events)


def write_grid(results):
    for method, options in (
        ("ddp", {"accumulate": 1}), ("ddp", {"accumulate": 4}), ("diloco", {"local_steps": 4}),
        ("diloco", {"local_steps": 16}),
    ):  # fmt: skip
        every = max(options.values())
        for seed in range(2):
            label = "" if every == 1 else " ".join(f"{name}={value}" for name, value in options.items())
            head = config(header(method, seed=seed, nodes=4, options=label), method_options=options)
            events = ramp(9.0, 0.9 if every < 16 or seed else 0.5)
            write_run(results, head, events, trace=averaging_trace(4, local_steps=every))


def write_dealing(results):
    cells = {
        "averaging": ("local_sgd", {"local_steps": 5}),
        "all": ("ist", {"local_steps": 5}),
        "late": ("ist", {"local_steps": 5, "deal": ["late"], "coverage": 2, "moving": 0.25}),
    }
    for cell, (method, own) in cells.items():
        head = config(header(method, workload="cifar10", cell=cell), method_options=own)
        write_run(results, head, ramp(9.0), trace=averaging_trace(local_steps=5))


def write_results(results):
    write_run(results, header("ddp"), ramp(9.0), trace=averaging_trace())


def write_smol_diloco(results):
    """Both rules with two rates; with 4 local steps the smaller rate is better, with 16 the larger one."""
    for rule in ("smol", "nesterov"):
        for every, rate, nodes in itertools.product((4, 16), (0.1, 0.3), (4, 1)):
            own = {"local_steps": every, "outer_lr": rate, "outer_rule": rule}
            label = " ".join(f"{name}={value}" for name, value in own.items())
            loss = 2.5 - 0.1 * ((every == 4) == (rate == 0.1)) + 0.2 * (nodes == 1)
            for seed in range(2):
                head = header("diloco", workload="text", options=label, nodes=nodes, seed=seed, metric="loss")
                head = config({**head, "lower_is_better": True}, method_options=own)
                events = [
                    msgspec.structs.replace(event, metrics={"loss": loss + 0.01 * seed}) for event in ramp(9.0)
                ]
                write_run(results, head, events)


def write_two_methods(results):
    for method in ("ddp", "local_sgd"):
        for nodes in (2, 4):
            write_run(results, header(method, nodes=nodes), ramp(9.0), trace=averaging_trace(nodes))


RUNS = {
    "dealing": write_dealing,
    "freeze_example": write_results,
    "freeze_results": write_results,
    "gpu_gains": write_p3_runs,
    "grid": write_grid,
    "maps": write_two_methods,
    "page_pictures": write_two_methods,
    "slide_curves": write_slide_curves,
    "smol_diloco": write_smol_diloco,
}
"""By program, a function that writes finished runs for it."""


def place_of(word, folder, program):
    """The path for a word in capitals; None for another word."""
    if word not in ("RESULTS", "TARGET", "CACHE", "TEXT"):
        return None
    path = folder / word.lower()
    if word == "RESULTS":
        RUNS[program](path)
    elif word == "TEXT":
        path.write_text("2 5 3\n0,1 0:0.5 4:1.5\n2 1:1\n")
    return path


@pytest.fixture(scope="module", autouse=True)
def nothing_is_written_to_the_checkout():
    def seen():
        folders = [ROOT / name for name in ("results", "scripts", "docs", "configs")]
        files = [path for folder in folders for path in folder.rglob("*") if "__pycache__" not in path.parts]
        return {path: path.stat().st_mtime_ns for path in files if path.is_file()}

    before = seen()
    yield
    assert seen() == before


@pytest.fixture
def as_before(monkeypatch, tmp_path):
    """Put back the state of this process that programs set for themselves."""
    threads, handler = torch.get_num_threads(), signal.getsignal(signal.SIGTERM)
    environment = dict(os.environ)
    monkeypatch.chdir(tmp_path)
    yield
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(threads)
    signal.signal(signal.SIGTERM, handler)


def require(who):
    if who == "on a GPU" and not torch.cuda.is_available():
        pytest.skip("no GPU here")
    if who == "as root":
        try:
            network.check()
        except UserError as error:
            pytest.skip(str(error))
        if reason := ssh_hosts.why_not():
            pytest.skip(reason)


def test_programs_are_found():
    assert {"p3_throughput.py", "cost.py", "freeze_results.py"} <= {path.name for path in PROGRAMS}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT / "scripts")))
def test_every_file_is_a_program_to_try_or_a_part_of_one(path):
    commands = tried(path)
    if path in PROGRAMS:
        assert len(commands) == 1, "one line of the docstring must end in `# to try it`"
        assert commands[0][0][0] == str(path.relative_to(ROOT))
    else:
        others = [text for other, text in TEXTS.items() if other != path and path.stem in text]
        assert any(re.search(rf"\b{path.stem}\b", other) for other in others), "nothing uses this file"


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_makes_something_that_is_quoted(path):
    assert any(path.name in quote.read_text() for quote in QUOTES) or any(
        path.name in TEXTS[other] for other in FILES if other != path
    )


def test_each_measurement_names_the_program_and_the_options_that_make_it():
    text = (ROOT / "results" / "bench.md").read_text()
    sections = re.findall(r"^### (.+)\n((?:(?!#).*\n)*)", text, re.MULTILINE)
    assert len(sections) > 20
    for heading, section in sections:
        named = re.search(r"`(\w+\.py)([^`]*)`", heading)
        if named is None:
            assert "without a script" in section, heading
            continue
        source = (ROOT / "scripts" / "bench" / named[1]).read_text()
        assert all(f'"{option}"' in source for option in re.findall(r"--[\w-]+", named[2])), heading


def networks_of_this_process():
    """The network namespaces of hosts that this process made."""
    return list(Path("/run/netns").glob(f"istbench-ssh-{os.getpid()}-*"))


@pytest.mark.processes
@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize("path", sorted(PROGRAMS, key=APART.get), ids=lambda path: path.stem)
def test_a_program_runs(path, request, monkeypatch, capsys, tmp_path):
    ((script, *words), who) = tried(path)[0]
    if who:
        require(who)
        if path.stem not in WITHOUT_LAB:
            request.getfixturevalue("only_lab")
    if path.stem not in FROM_THE_START:
        request.getfixturevalue("warm_commands")
    words = [place_of(word, tmp_path, path.stem) or word for word in words]
    monkeypatch.setattr(sys, "argv", [script, *map(str, words)])
    monkeypatch.syspath_prepend(str(path.parent))
    assert not importlib.import_module(path.stem).main()
    printed, target = capsys.readouterr().out, tmp_path / "target"
    assert re.search(r"\d", printed) or list(target.iterdir())
    assert not re.search(r"\bnan\b|Traceback", printed)
    for part in SAYS.get(path.stem, ()):
        assert part in printed
    assert not networks_of_this_process()


def test_networks_of_the_plugin_are_cut_into_subnets(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "bench"))
    cut = importlib.import_module("cut_layers")
    vgg12 = ImageNetOptions(model="vgg12")
    for workload in (cut.Alternate(vgg12), cut.Late(vgg12), cut.Linears(vgg12), cut.ThinBlocks()):
        with torch.device("meta"):
            model = workload.build_model()
        assert layout_of(model, workload.neuron_groups(model)).cut
