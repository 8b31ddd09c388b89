"""A command of istbench on the machines of an engine, and the shell that every node runs."""

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from istbench.base.decode import read_text
from istbench.base.errors import UserError, shown
from istbench.cluster.profile import ClusterProfile

_PORT = 29500
_IMAGE = r"[a-z0-9][A-Za-z0-9._:/@-]{0,300}"
_CARRIED = (".toml", ".py")
_MOST_CARRIED = 100_000  # Kubernetes takes objects of about a megabyte
_RENDEZVOUS_S = 1800  # a node may install istbench for so much longer than another
_ENDS_S = 120  # from the interrupt to the kill; a checkpoint takes seconds
_SETUP = """mkdir -p "$work"
rm -rf "$work/venv"  # pip keeps an istbench of the same version
for python in python3 python3.14 python3.13 python3.12 python3.11; do
    "$python" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break
    python=
done
if [ -n "$python" ]; then "$python" -m venv "$work/venv"
else PATH="$HOME/.local/bin:$PATH" uv venv --seed --python 3.12 "$work/venv"
fi
"""


@dataclass(frozen=True, kw_only=True)
class EngineJob:
    """One command of istbench on `nodes` machines.

    Attributes:
        name: of the job. machine: the profile of a type of machine. words: of the command, without the program.
        results: the place of the results as the engine names it; None for its default.
        install: a requirement for pip, or the path of a wheel. hours: the limit of the run.
        image: of a container with the program istbench; nothing is installed then. None for the machines' own.
    """

    name: str
    nodes: int
    machine: ClusterProfile
    words: Sequence[str]
    results: str | None
    install: str
    hours: float
    image: str | None = None

    def __post_init__(self) -> None:
        if self.image is not None and not re.fullmatch(_IMAGE, self.image):
            raise UserError(
                f"--image {shown(self.image)} is no name of an image, such as registry.example/istbench:1"
            )
        for text in (*self.words, self.install, self.results or ""):
            _require_plain(text, shown(text))
        if not self.install or self.install.startswith("-"):
            raise UserError(
                f"--install {shown(self.install)} is no requirement; give a name, an address or a wheel"
            )

    @property
    def gpus(self) -> int:
        """GPUs of a machine; a profile without cores describes one GPU."""
        return int(self.machine.cores is None)

    @property
    def limit_s(self) -> int:
        """The limit for an engine that kills: of the run, with its installation and its end."""
        return math.ceil(self.hours * 3600) + _RENDEZVOUS_S + _ENDS_S

    @property
    def wheel(self) -> Path | None:
        """The wheel to install; None if `install` names no file here, or an image has istbench."""
        if self.image is not None:
            return None
        return Path(self.install) if re.fullmatch(r"(?!.*://).+\.whl", self.install) else None

    def comment(self, *lines: str) -> str:
        """Lines of a comment: the command, its price, and the next steps."""
        an_hour = self.nodes * self.machine.price_per_hour
        price = (
            f"{self.nodes} x {self.machine.name}: ${an_hour:,.2f} an hour ({self.machine.price_date}), "
            f"${an_hour * self.hours:,.2f} in {self.hours:g} hours, without set-up and disks"
        )
        command = shlex.join(["istbench", *self.words])
        return "".join(f"# {' '.join(line.split())}\n" for line in (command, price, *lines))

    def setup(self, wheels: str = "") -> str:
        """Shell that installs istbench in `$work`, unless an image has it, and writes the carried files there.

        Args:
            wheels: shell for the directory of the wheel on a node.
        """
        carried = "".join(
            f'mkdir -p "$work/{Path(path).parent}"\nprintf %s {shlex.quote(text)} > "$work"/{shlex.quote(path)}\n'
            for path, text in self._carried.values()
        )
        if self.image is not None:
            return carried
        name = shlex.quote(self.install)
        if self.wheel:
            name = f"{wheels}/{shlex.quote(f'{self.wheel.name}[speech]')}"  # the default workload needs it
        return f'{_SETUP}"$work/venv/bin/pip" install --quiet {name}\n{carried}'

    def run(self, rank: str, first: str, out: str) -> str:
        """Shell that runs the command by torchrun as one of the nodes.

        Args:
            rank, first, out: shell for the number of this node, the address of node 0, the results directory.
        """
        arguments = " ".join(map(self._word, self.words))
        before, python = "", '"$work/venv/bin/python"'
        if self.image is not None:  # a launcher may put a Python of its own before that of the image
            before, python = 'python=$(head -n 1 "$(command -v istbench)")\n', '"${python#??}"'
        return before + (
            f"timeout --foreground --signal=INT --kill-after={_ENDS_S} {math.ceil(self.hours * 3600)} \\\n"
            f"    {python} -P -m torch.distributed.run --nnodes {self.nodes} \\\n"
            f'    --node-rank "{rank}" --nproc-per-node 1 \\\n'
            f'    --rdzv-endpoint "{first}:{_PORT}" --rdzv-conf timeout={_RENDEZVOUS_S} \\\n'
            f'    -m istbench {arguments} --out "{out}"\n'
        )

    def _word(self, word: str) -> str:
        if word not in self._carried:
            return shlex.quote(word)
        option = word[: -len(_value(word))]
        return f'{option}"$work"/{shlex.quote(self._carried[word][0])}'

    @cached_property
    def _carried(self) -> dict[str, tuple[str, str]]:
        """By word, the path below `$work` and the text of the file that the word names."""
        found: dict[str, tuple[str, str]] = {}
        for word in self.words:
            path = Path(_value(word))
            if path.suffix in _CARRIED and path.is_file():
                text = read_text(path, "a suite or Python code")
                _require_plain(text, str(path))
                found[word] = (f"files/{len(found)}/{path.name}", text)
        if sum(len(text) for _, text in found.values()) > _MOST_CARRIED:
            raise UserError(f"the files of the command have over {_MOST_CARRIED:,} characters; make them a package")
        return found


def _value(word: str) -> str:
    """The value of a word such as `--plugin=FILE.py`."""
    return word.partition("=")[2] if re.match(r"--[a-z-]+=.", word) else word


def _require_plain(text: str, where: str) -> None:
    """Refuse control characters, which YAML does not keep."""
    if not all(character.isprintable() or character in "\n\t" for character in text):
        raise UserError(f"{where} has characters that are not printable; remove them")
