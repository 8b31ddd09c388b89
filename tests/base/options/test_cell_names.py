"""Cells keep their names, so that recorded results are found again."""

import json
from pathlib import Path

import msgspec
import pytest

from istbench.base.decode import decode_own, encode_own
from istbench.base.options.run import Lab, RunConfig, Uplink
from istbench.base.options.suite import read_suite
from istbench.launch.cells.resolve import prepare_cell

ROOT = Path(__file__).parents[3]
RECORDED = json.loads((Path(__file__).parent / "cells_of_before.json").read_text())
IN_RESULTS = {
    "cifar10-ddp-n2-s0-ccfd0ba3": "light-cifar10",
    "cifar10-ist-n4-s2-932cf5c3": "light-cifar10",
    "cifar10-local_sgd-n4-s1-933c4313": "light-cifar10",
    "speech-ist-n4-s0-bec1f31f": "streaming-speech",
    "speech-ist-n4-s0-6f3ac740": "streaming-speech",
    "speech-ist-n8-s2-93b39407": "streaming-speech",
}
# Of the data "data", on one thread a node.
SMOKE = [
    "toy-ist-n2-s0-5cff4904",
    "toy-local_sgd-n2-s0-38321aa5",
    "toy-ddp-n2-s0-fc09d1aa",
    "toy-zero-n2-s0-86db6fda",
    "toy-fsdp-n2-s0-4d3bc092",
    "toy-parameter_server-n2-s0-7f8a0dd6",
    "toy-p3-n2-s0-58f5b2bd",
    "toy-ist-n3-s0-576c3cf5",
    "toy-local_sgd-n3-s0-d4556889",
    "toy-ddp-n3-s0-eae6e03e",
    "toy-zero-n3-s0-327793b9",
    "toy-fsdp-n3-s0-fa9b5da2",
    "toy-parameter_server-n3-s0-ed5e114b",
    "toy-p3-n3-s0-8455676d",
    "speech-ist-n2-s0-75d0abe4",
    "speech-local_sgd-n2-s0-fefe0aa6",
    "speech-ddp-n2-s0-37ecfff5",
    "amazon670k-model_parallel-n2-s0-b8256f3e",
    "amazon670k-sampled_softmax-n2-s0-3ffdf3c2",
    "amazon670k-dslide-n2-s0-b5ef6a28",
]


@pytest.mark.parametrize("cell", RECORDED, ids=lambda cell: cell["name"])
def test_a_recorded_configuration_has_its_recorded_name(cell):
    config = msgspec.convert(cell["config"], RunConfig, dec_hook=decode_own)
    assert config.cell(cell["fingerprint"]) == cell["name"]
    assert json.loads(msgspec.json.encode(config, enc_hook=encode_own)) == cell["config"]


def test_a_lab_without_racks_is_recorded_as_labs_of_before():
    lab = Lab(summary="links shaped to 1 Gbit/s", bandwidth=1e9)
    assert "uplink" not in msgspec.to_builtins(lab)
    racks = msgspec.structs.replace(lab, uplink=Uplink(nodes=2, bandwidth=1e8))
    assert msgspec.json.decode(msgspec.json.encode(racks), type=Lab) == racks


@pytest.mark.parametrize(("name", "study"), IN_RESULTS.items())
def test_recorded_names_are_those_of_committed_results(name, study):
    assert name in [cell["name"] for cell in RECORDED]
    assert f"\n{name}," in (ROOT / "results" / study / "evaluations.csv").read_text()


def test_an_older_configuration_without_newer_options_has_the_same_name():
    for cell in RECORDED:
        newer = {name for name in ("amp", "channels_last", "compile", "lab", "code") if not cell["config"][name]}
        older = {name: value for name, value in cell["config"].items() if name not in newer}
        config = msgspec.convert(older, RunConfig, dec_hook=decode_own)
        assert config.cell(cell["fingerprint"]) == cell["name"]


def test_cells_of_the_smoke_suite_keep_their_names():
    requests = [
        msgspec.structs.replace(request, threads=1, device="cpu")
        for suite in read_suite(ROOT / "configs" / "smoke.toml")
        for request in suite.requests()
    ]
    cells = [prepare_cell(request, lambda *_: None).config.cell("data") for request in requests]
    assert cells[: len(SMOKE)] == SMOKE  # later suites have newer methods
