"""Checkpoints without pickle: tensors in safetensors, the rest in JSON, complete or absent.

`checkpoint/<step>/rank-K.{safetensors,json}` are written by every node; then rank 0 replaces
`checkpoint/latest.json`, which names the step. Only a step that is named there counts.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import load, load_file, save
from torch import Tensor

from istbench.config.numbers import Amount, Duration, Natural
from istbench.door import decode_json, read_bytes
from istbench.errors import UserError, printable
from istbench.fabric import FabricError
from istbench.files import sync, writing_whole
from istbench.node.digest import blocks_of
from istbench.node.weights_file import write_tensors

_TENSOR, _STATE = "tensor:", "state"
_LATEST = "latest.json"
_MOST_JSON_BYTES = 2**30
_LONGEST_REASON = 200


class Totals(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a run has done so far, over all its resumptions; the same on every node.

    Attributes:
        step: local steps. train_s, wall_s: seconds.
        bytes_sent, bytes_received: training traffic of the busiest node.
        computing_s: of `train_s`, the seconds that each node did not wait for others, by rank. Empty where a part
            of the run did not measure it.
    """

    step: Natural
    train_s: Duration
    wall_s: Duration
    bytes_sent: Amount
    bytes_received: Amount
    computing_s: tuple[Duration, ...] = ()


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The state of torch's random numbers on this node: the CPU's, and that of `device` where it is a GPU."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, Tensor] | Tensor, device: torch.device) -> None:
    """The inverse of `random_state`. Checkpoints of before it have the CPU's alone.

    Raises:
        UserError: where `device` is a GPU, and the state was written on a node without.
    """
    states = {"cpu": state} if isinstance(state, Tensor) else state
    if device.type == "cuda" and "cuda" not in states:
        raise UserError("it has no random state of a GPU")
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)


def write_rank(directory: Path, step: int, rank: int, state: dict[str, Any]) -> None:
    """Write one rank's `state`, a nested dictionary with string keys of tensors and JSON values, to disk.

    Raises:
        UserError: where it cannot be written.
    """
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_without_tensors(state, "", tensors), allow_nan=False)
    stem = _stem(directory, step, rank)
    with _writing(directory):
        stem.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(stem.with_suffix(".safetensors"), tensors, blocks_of(tensors))
        stem.with_suffix(".json").write_text(text)
        sync(stem.with_suffix(".json"))


def packed(state: dict[str, Any]) -> Tensor:
    """`state`, as `write_rank` takes it, in bytes that can be sent; `unpacked` is the inverse."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_without_tensors(state, "", tensors), allow_nan=False)
    # Copied, as this library refuses tensors that share memory.
    copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    return torch.frombuffer(bytearray(save(copies, {_STATE: text})), dtype=torch.uint8)


def unpacked(content: Tensor) -> dict[str, Any]:
    """The state that `packed` made `content` of."""
    plain = content.cpu().numpy().tobytes()
    header = json.loads(plain[8 : 8 + int.from_bytes(plain[:8], "little")])
    tensors = load(plain)
    return {key: _with_tensors(value, tensors) for key, value in json.loads(header["__metadata__"][_STATE]).items()}


def publish(directory: Path, totals: Totals) -> None:
    """Make `totals.step` the checkpoint to resume from, once every rank has written; older ones are deleted.

    `totals` come back from `latest`.

    Raises:
        UserError: where it cannot be written.
    """
    with _writing(directory):
        with writing_whole(directory / _LATEST) as file:
            file.write(msgspec.json.encode(totals))
        for folder in directory.iterdir():
            if folder.is_dir() and not folder.is_symlink() and folder.name != str(totals.step):
                shutil.rmtree(folder)


def latest(directory: Path) -> Totals | None:
    """The totals at the published checkpoint, or None where there is none.

    Raises:
        UserError: where what is there is no checkpoint, naming the directory to delete.
    """
    path = directory / _LATEST
    if not os.path.lexists(path):
        return None
    return decode_json(_content(path, directory), Totals, str(path), _way_out(directory))


def read_rank(directory: Path, step: int, rank: int) -> dict[str, Any]:
    """The state that `rank` wrote at `step`.

    Raises:
        UserError: where what is there is none, naming the directory to delete.
    """
    stem = _stem(directory, step, rank)
    path = stem.with_suffix(".json")
    state = decode_json(_content(path, directory), dict[str, Any], str(path), _way_out(directory))
    path = stem.with_suffix(".safetensors")
    _require_file(path, directory)
    try:
        tensors = load_file(path)
    except Exception as error:  # whatever the library makes of a broken file
        raise _broken(path, str(error), directory) from None
    try:
        return {key: _with_tensors(value, tensors) for key, value in state.items()}
    except (KeyError, RecursionError):
        raise _broken(stem.with_suffix(".json"), "it names a tensor that is not there", directory) from None


@contextmanager
def fitting(directory: Path) -> Iterator[None]:
    """Inside, a state from `directory` is taken over.

    Raises:
        UserError: where it does not fit, naming the directory to delete.
    """
    try:
        yield
    except FabricError:
        raise
    except Exception as error:
        # A checkpoint that was tampered with breaks whatever reads it in ways of its own.
        reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        raise _broken(directory, f"it does not fit: {reason}", directory) from None


def _stem(directory: Path, step: int, rank: int) -> Path:
    return directory / str(step) / f"rank-{rank}"


def _content(path: Path, directory: Path) -> bytes:
    _require_file(path, directory)
    return read_bytes(path, f"a checkpoint, or {_way_out(directory)}", _MOST_JSON_BYTES)


def _require_file(path: Path, directory: Path) -> None:
    if path.is_symlink() or not path.is_file():
        raise _broken(path, "it is no file" if os.path.lexists(path) else "it is missing", directory)


def _broken(path: Path, why: str, directory: Path) -> UserError:
    return UserError(f"checkpoint {path} is broken ({printable(why)[:_LONGEST_REASON]}); {_way_out(directory)}")


def _way_out(directory: Path) -> str:
    return f"delete {directory} to start the cell anew"


@contextmanager
def _writing(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = printable(error.strerror or str(error))[:_LONGEST_REASON]
        raise UserError(
            f"cannot write the checkpoint {directory}: {reason}; mend that and run the same command again to resume"
        ) from None


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
