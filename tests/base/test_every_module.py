"""On an interpreter without torch, where `.ci/run` tests it, each module of istbench loads or needs torch."""

import importlib
import pkgutil
from importlib.util import find_spec

import pytest

import istbench

pytestmark = pytest.mark.skipif(
    find_spec("torch") is not None, reason="where torch is, other tests load every module"
)

# They change the process that imports them, or compile for it.
_BESIDE_WORKERS = {
    f"istbench.launch.processes.{name}" for name in ("fork_server", "compiled_kernels", "compiler_on_demand")
}
_ROOMS = ("base", "cluster", "results", "report")


def test_modules_of_the_rooms_without_torch_load_and_others_fail_by_torch_alone():
    lacking = {}
    for module in pkgutil.walk_packages(istbench.__path__, "istbench."):
        if module.name in _BESIDE_WORKERS:
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            lacking[module.name] = error.name
    assert set(lacking.values()) <= {"torch", "torchvision", "torchaudio"}
    assert [name for name in lacking if name.split(".")[1] in _ROOMS] == []
    assert "istbench.methods.ist" in lacking
