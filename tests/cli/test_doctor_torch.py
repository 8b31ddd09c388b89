"""`doctor` names a torch, torchvision or torchaudio that fits neither istbench nor the others."""

import sys

import pytest
from packaging.requirements import Requirement

from istbench.cli import doctor_command
from istbench.cli.doctor_command import torch_clash

NEEDED = {
    name: Requirement(text)
    for name, text in {
        "torch": "torch>=2.9,<2.13",
        "torchvision": "torchvision>=0.24,<0.28",
        "torchaudio": "torchaudio>=2.9,<2.11.1",
    }.items()
}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Puts the metadata of packages before those of this environment."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(name, number, *requirements):
        metadata = tmp_path / f"{name}-{number}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {number}"]
        lines += [f"Requires-Dist: {one}" for one in requirements]
        metadata.write_text("\n".join(lines) + "\n")

    return install


def test_no_word_where_all_fit(installed):
    installed("torch", "2.12.1+cpu")
    installed("torchvision", "0.27.1", "torch (==2.12.1)")
    installed("torchaudio", "2.11.0")
    assert torch_clash(NEEDED) == ""


def test_a_newer_torch_is_named_with_the_way_to_keep_it(installed):
    installed("torch", "2.15.0")
    installed("torchvision", "0.29.2", "torch==2.15.0")
    line = torch_clash(NEEDED)
    assert line.startswith(
        "torch 2.15.0 is not <2.13,>=2.9; torchvision 0.29.2 is not <0.28,>=0.24: pip install 'torch"
    )
    assert "replaces it; to keep it, give istbench an environment of its own" in line
    assert "\n" not in line


def test_a_torchvision_for_another_torch_gives_way_and_torch_stays(installed):
    installed("torch", "2.11.0")
    installed("torchvision", "0.27.1", "numpy", "torch==2.12.1", "gdown; extra == 'gdown'")
    line = torch_clash(NEEDED)
    assert line == (
        "torchvision 0.27.1 is for torch==2.12.1, and torch 2.11.0 is installed: pip install 'torch==2.11.0' "
        "'torchvision<0.28,>=0.24' 'torchaudio==2.11.0', which keeps torch"
    )


def test_one_that_does_not_load_is_named_with_its_error(installed, tmp_path, monkeypatch):
    installed("torch", "2.12.1+cpu")
    monkeypatch.delitem(sys.modules, "torchaudio", raising=False)
    (tmp_path / "torchaudio.py").write_text("raise OSError('libcudart.so.13:\\n no such file')\n")
    installed("torchaudio", "2.11.0")
    line = torch_clash(NEEDED)
    assert line.startswith(
        "torchaudio 2.11.0 does not load beside torch 2.12.1+cpu (libcudart.so.13: no such file): "
    )
    assert "'torch==2.12.1'" in line


def test_a_torchaudio_for_a_later_torch_gives_way(installed, tmp_path, monkeypatch):
    installed("torch", "2.9.0")
    installed("torchvision", "0.24.0", "torch==2.9.0")
    installed("torchaudio", "2.11.0")
    monkeypatch.delitem(sys.modules, "torchaudio", raising=False)
    (tmp_path / "torchaudio.py").write_text("raise OSError('Could not load this library')\n")
    assert torch_clash(NEEDED) == (
        "torchaudio 2.11.0 does not load beside torch 2.9.0 (Could not load this library): pip install "
        "'torch==2.9.0' 'torchvision<0.28,>=0.24' 'torchaudio==2.9.*', which keeps torch"
    )


def test_doctor_prints_one_line_for_the_three(installed):
    installed("torch", "2.0.0")
    (broken,) = [finding for finding in doctor_command._packages() if finding.state == "broken"]
    assert broken.what == "torch"
    assert {finding.what for finding in doctor_command._packages()} >= {"torch", "click"}
    assert "torchvision" not in {finding.what for finding in doctor_command._packages()}
