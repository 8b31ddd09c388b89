"""Checkpoints without pickle: tensors in safetensors, the rest in JSON, complete or absent.

`checkpoint/<step>/rank-K.{safetensors,json}` are written by every node; then rank 0 replaces
`checkpoint/latest.json`, which names the step. Only a step that is named there counts.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from istbench.errors import UserError
from istbench.files import sync

_TENSOR = "tensor:"


def write_rank(directory: Path, step: int, rank: int, state: dict[str, Any]) -> None:
    """Write one rank's `state`, a nested dictionary with string keys of tensors and JSON values, to disk."""
    folder = directory / str(step)
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_without_tensors(state, "", tensors))
    # Tensors that are views of one buffer are stored apart: each is copied out of it.
    contiguous = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    save_file(contiguous, folder / f"rank-{rank}.safetensors")
    sync(folder / f"rank-{rank}.safetensors")
    (folder / f"rank-{rank}.json").write_text(text)
    sync(folder / f"rank-{rank}.json")


def publish(directory: Path, step: int, meta: dict[str, Any]) -> None:
    """Make `step` the checkpoint to resume from, once every rank has written; older ones are deleted.

    `meta` (JSON values) is the same for all ranks, and comes back from `latest`.
    """
    temporary = directory / "latest.json.tmp"
    temporary.write_text(json.dumps({**meta, "step": step}))
    sync(temporary)
    temporary.replace(directory / "latest.json")
    sync(directory)
    for folder in directory.iterdir():
        if folder.is_dir() and folder.name != str(step):
            shutil.rmtree(folder)


def latest(directory: Path) -> dict[str, Any] | None:
    """The published checkpoint's `meta` with its `step`, or None where there is none."""
    path = directory / "latest.json"
    if not path.exists():
        return None
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is broken ({error}); delete {directory} to start the cell anew") from None


def read_rank(directory: Path, step: int, rank: int) -> dict[str, Any]:
    """The state that `rank` wrote at `step`."""
    stem = directory / str(step) / f"rank-{rank}"
    try:
        tensors = load_file(stem.with_suffix(".safetensors"))
        return dict(_with_tensors(json.loads(stem.with_suffix(".json").read_text()), tensors))
    except Exception as error:
        raise UserError(f"checkpoint {stem} is broken ({error}); delete {directory} to start anew") from None


def _without_tensors(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors[path] = value
        return _TENSOR + path
    if isinstance(value, dict):
        return {key: _without_tensors(item, f"{path}/{key}", tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_tensors(item, f"{path}/{index}", tensors) for index, item in enumerate(value)]
    return value


def _with_tensors(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, str) and value.startswith(_TENSOR):
        return tensors[value.removeprefix(_TENSOR)]
    if isinstance(value, dict):
        return {key: _with_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_tensors(item, tensors) for item in value]
    return value
