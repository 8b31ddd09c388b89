"""The secret that the ranks of torchrun share, so that nobody else can send messages in their name.

The user sets ISTBENCH_SECRET to the same value on every host. Otherwise istbench makes a file that only the user
can read. All ranks of a host share this file, and so do hosts that share a home directory.
"""

import contextlib
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from istbench.base.errors import UserError

SECRET = "ISTBENCH_SECRET"
"""The environment variable that holds the secret."""
LEAST_CHARACTERS = 16
_MOST_BYTES = 4096
_BYTES = 32


def run_secret(environment: Mapping[str, str] = os.environ) -> bytes:
    """The secret of the runs that torchrun starts here.

    Raises:
        UserError: if it is too short, or other users can read or write its file.
    """
    if SECRET in environment:
        return _long_enough(environment[SECRET].strip(), SECRET)
    path = secret_file(environment)
    if not os.path.lexists(path):
        _make(path)
    return _long_enough(_read(path), str(path))


def secret_file(environment: Mapping[str, str] = os.environ) -> Path:
    """The file of the secret, for a user who does not set the environment variable."""
    home = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME") or Path.home(), ".config")
    return Path(home) / "istbench" / "secret"


def _make(path: Path) -> None:
    """Write a new secret to `path`, whole, unless another process does so meanwhile."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{secrets.token_hex(_BYTES)}\n")
        try:
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            temporary.unlink()
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}; set {SECRET} to the same secret on every host"
        ) from None


def _read(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            content = file.read(_MOST_BYTES)
    except OSError as error:
        raise UserError(
            f"cannot read {path}, the secret of your runs: {error.strerror}; delete it to get a new one"
        ) from None
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise UserError(
            f"{path}, the secret of your runs, can be read or written by others; delete it to get a new one, on "
            "every host that has a copy"
        )
    return content.decode("ascii", "replace").strip()


def _long_enough(text: str, where: str) -> bytes:
    if len(text) < LEAST_CHARACTERS:
        raise UserError(f"{where} holds {len(text)} characters; a secret needs {LEAST_CHARACTERS} or more")
    return text.encode()
