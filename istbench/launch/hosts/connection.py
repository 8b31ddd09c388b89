"""The connection to a host: one ssh process, and `agent_program` at its other end, which answers requests.

The connection runs the `ssh` of the user, with the keys and configuration of the user. ssh never asks for a
password.
"""

import contextlib
import json
import queue
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as TooLate
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from istbench.base.decode import convert, decode_json, path_text
from istbench.base.errors import UserError, printable
from istbench.base.options.numbers import Natural
from istbench.base.options.texts import Message, Short
from istbench.base.threads import thread_beside
from istbench.launch.hosts import agent_program
from istbench.launch.hosts.agent_program import INSTALLED
from istbench.launch.hosts.names import Host
from istbench.launch.hosts.remote_programs import source_key
from istbench.launch.hosts.run_folder import Failure, Status
from istbench.launch.processes.launcher import Signals

T = TypeVar("T")
ANSWERS_S = 30.0
_CONNECTS_S = 10
_BEATS_S = 5.0
_LEAVES_S = 2.0
_LEAST_PYTHON = (3, 11)
_LAST_LINES = 20
_MOST_BYTES = 1 << 24  # of a part of a file
_LONGEST_LINE = 1 << 30  # the longest names the contents of ten million files
_BEAT = 0  # its number among questions
_ACTIONS = "istbench.launch.hosts.remote_actions"  # of the istbench on the host
_OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": str(_CONNECTS_S),
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
    "ClearAllForwardings": "yes",
}
# A shell command: run the first Python that exists, whose program follows. `@` stands for the cache directory.
_FIND = (
    'cache="${ISTBENCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/istbench}"; for python do '
    'case "$python" in @*) python="$cache/${python#@}";; esac; '
    'command -v "$python" >/dev/null && exec "$python" -u -c "$PROGRAM"; done; exit 127'
)
# As -P does, which Python 3.11 is the first to know: import no file of the working directory.
_READ = (
    "import sys; sys.path[:] = [folder for folder in sys.path if folder]; "
    "exec(compile(sys.stdin.buffer.read({size}), 'istbench', 'exec'))"
)
_NO_PYTHON = 127
_WRONG, _SAME = "it sends a wrong message", "install the same istbench on every host"


class Lost(Exception):  # noqa: N818  (it names an event of a host)
    """The connection to a host failed; the message has the reason and the way out."""


class Refused(Exception):  # noqa: N818
    """A host answered that a request failed; the message has the reason."""


class Frame(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message of a host, which has exactly one of `python`, `said`, `cell`, `ended` and `id`.

    Attributes:
        python: the version of its Python. said: a line for the user. cell: the name of the cell that it runs.
        ended: the exit status of its run. failure: of the run. tail: the last lines of torchrun.
        id: the number of a request. It comes with one of `answer`, `error` and `bytes`, the size of raw content.
    """

    python: tuple[Natural, Natural] | None = None
    said: Message | None = None
    cell: Short | None = None
    ended: Status | None = None
    failure: Failure | None = None
    tail: tuple[Message, ...] = ()
    id: Natural | None = None
    answer: Any = msgspec.UNSET
    error: Message | None = None
    bytes: Annotated[int, msgspec.Meta(ge=0, le=_MOST_BYTES)] | None = None

    def __post_init__(self) -> None:
        kinds = [self.python, self.said, self.cell, self.ended, self.id]
        results = [self.answer is not msgspec.UNSET, self.error is not None, self.bytes is not None]
        if sum(kind is not None for kind in kinds) != 1 or sum(results) != (self.id is not None):
            raise ValueError("must be one message")


@dataclass(frozen=True)
class Event:
    """A message of a host that answers no request, or the loss of its connection."""

    host: "Connection"
    frame: Frame | Lost


Events = queue.SimpleQueue[Event]


def ssh_command(host: Host, pythons: Sequence[str], size: int, config: Path | None = None) -> list[str]:
    """The command by which a Python on `host` runs the program in the first `size` bytes of standard input.

    config: the file that ssh reads instead of the user's own configuration.
    """
    options = [f"-o{name}={value}" for name, value in _OPTIONS.items()]
    program = _READ.format(size=size)
    words = ["env", f"PROGRAM={program}", "sh", "-c", _FIND, "sh", *pythons]
    if host.local:
        return words
    return ["ssh", *way(host, config), "-T", *options, "--", host.destination, shlex.join(["exec", *words])]


def way(host: Host, config: Path | None) -> list[str]:
    """Options that ssh and ssh-copy-id need to reach `host`, without its destination."""
    return [*(["-F", str(config.absolute())] if config else []), *(["-p", host.port] if host.port else [])]


def why_not_reached(host: Host, said: Sequence[str], status: int, config: Path | None = None) -> str:
    """Why ssh, which printed `said` and ended with `status`, did not reach `host`; and the command to run."""
    last = next((line for line in reversed(said) if line), f"it ended with status {status}")
    try_it = shlex.join(["ssh", *way(host, config), host.destination, "true"])
    text = "\n".join(said)
    if changed := re.search(r"^(?:\S+ )?host key for (\S+) has changed", text, re.M | re.I):
        file = re.search(r"^Offending \S+ key in (.+):[0-9]+$", text, re.M)
        remove = shlex.join(["ssh-keygen", "-R", changed[1], *(["-f", file[1]] if file else [])])
        return (
            "its host key has changed: the host was set up anew, or another machine answers for it. If you know "
            f"why, run `{remove}`, then `{try_it}` once, and accept the new key"
        )
    if "Host key verification failed" in text:
        strict = "requested strict checking" in text
        ask = try_it.replace("ssh ", "ssh -o StrictHostKeyChecking=ask ", 1) if strict else try_it
        return f"its host key is not known here yet; run `{ask}` once, compare the key, and accept it"
    if denied := re.search(r"^.*Permission denied \(.*publickey.*\).*$", text, re.M):
        copy = shlex.join(["ssh-copy-id", *way(host, config), host.destination])
        return (
            f"it accepts none of your keys ({denied[0].rstrip('.')}); run `{copy}` once, or name the right key by "
            "IdentityFile in the ssh configuration"
        )
    no_file = ", and no file of hosts has this name" if "Could not resolve hostname" in text else ""
    return f"ssh does not reach it ({last}){no_file}; `{try_it}` must work without a question"


class Connection:
    """One host. Several threads may send requests."""

    def __init__(self, host: Host, pythons: Sequence[str], events: Events, config: Path | None = None) -> None:
        self.host, self.name = host, host.name
        self._config = config
        self._pythons, self._events = pythons, events
        self._futures: dict[int, Future[Any]] = {}
        self._lock, self._count = threading.Lock(), 0
        self._said: deque[str] = deque(maxlen=_LAST_LINES)
        self._python_version: Future[tuple[int, int]] = Future()
        self._lost: Lost | None = None
        self._wrong = ""  # its message that ended the connection
        self._heard, self._silent = time.monotonic(), False
        program = Path(agent_program.__file__).read_bytes()
        # In a session of its own, so that a Ctrl-C at the terminal is left to this program.
        self._process = subprocess.Popen(
            ssh_command(host, pythons, len(program), config),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._errors = threading.Thread(target=self._read_errors, daemon=True)
        self._errors.start()
        threading.Thread(target=self._read, daemon=True).start()
        self._write(program)

    def greet(self) -> None:
        """Return when the host answers.

        Raises:
            Lost: where it does not.
        """
        found = self.answer(self._python_version)
        if found < _LEAST_PYTHON:
            version, least = ".".join(map(str, found)), ".".join(map(str, _LEAST_PYTHON))
            raise Lost(f"its Python is {version}, and istbench needs {least}; name another by --hosts-python")

    def ask(self, do: str, content: bytes | None = None, **rest: Any) -> "Future[Any]":
        """Request the action `do` with the bytes `content`; `answer` waits for the result."""
        future: Future[Any] = Future()
        with self._lock:
            self._count += 1
            number = self._count
            self._futures[number] = future
        size = {} if content is None else {"bytes": len(content)}
        asked = {"id": number, "do": do, "of": _ACTIONS, **rest, **size}
        self._write(json.dumps(asked).encode() + b"\n" + (content or b""))
        if self._lost is not None:
            with contextlib.suppress(Exception):
                future.set_exception(self._lost)
        return future

    def answer(self, future: "Future[Any]", timeout_s: float = ANSWERS_S) -> Any:
        """The result of a request.

        Raises:
            Lost: if the connection fails, or no answer comes in time. Refused: if the host cannot do it.
        """
        try:
            return future.result(timeout_s)
        except TooLate:
            raise Lost(f"it has said nothing for {timeout_s:g} s (it may be overloaded)") from None

    def do(self, do: str, timeout_s: float = ANSWERS_S, **rest: Any) -> Any:
        """Send a request and wait for its result; raises as `answer` does."""
        return self.answer(self.ask(do, **rest), timeout_s)

    def beat(self) -> None:
        """Send a sign of life, and close the connection if nothing has come from the host for a minute.

        ssh notices a lost network, but not a stopped program at the other end.
        """
        if time.monotonic() - self._heard > agent_program.SILENCE_S:
            self._silent = True
            self._process.kill()
        elif self._lock.acquire(blocking=False):  # another thread is writing, which is a sign of life
            try:
                self._send(json.dumps({"id": _BEAT, "do": "clock"}).encode() + b"\n")
            finally:
                self._lock.release()

    @property
    def silent_s(self) -> float:
        """Seconds since the last message of the host."""
        return time.monotonic() - self._heard

    def hang_up(self) -> None:
        """Tell the host to end all that it does for this program; `close` waits for it briefly."""
        with contextlib.suppress(OSError, ValueError):
            assert self._process.stdin is not None
            self._process.stdin.close()

    def close(self) -> None:
        """End the connection."""
        self.hang_up()
        self._leave()

    def _leave(self) -> None:
        try:
            self._process.wait(_LEAVES_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _write(self, content: bytes) -> None:
        with self._lock:
            self._send(content)

    def _send(self, content: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):
            assert self._process.stdin is not None
            self._process.stdin.write(content)
            self._process.stdin.flush()

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said.append(printable(line.decode(errors="replace").strip()))

    def _read(self) -> None:
        try:
            self._read_frames()
        except Exception as error:  # whatever ends this thread, the run must hear of it
            self._wrong = str(error) if isinstance(error, UserError) else f"{_WRONG}: {error!r}"
            self._process.terminate()  # the agent ends all that it started
            self._leave()
        self._errors.join()
        self._lost = Lost(self._why_lost(self._process.wait()))
        for future in [*self._futures.values(), self._python_version]:
            with contextlib.suppress(InvalidStateError):
                future.set_exception(self._lost)
        self._events.put(Event(self, self._lost))

    def _read_frames(self) -> None:
        """Pass on the messages of the host until it ends.

        Raises:
            UserError: for another message than a `Frame`, and for a result that nobody requested.
        """
        assert self._process.stdout is not None
        mark = agent_program.MARK.encode()
        for line in iter(partial(self._process.stdout.readline, _LONGEST_LINE), b""):
            _, found, content = line.partition(mark)
            if found and (line.endswith(b"\n") or len(line) == _LONGEST_LINE):  # else the connection broke off
                self._heard = time.monotonic()
                frame = decode_json(content, Frame, _WRONG, _SAME)
                raw = self._process.stdout.read(frame.bytes or 0)
                if len(raw) == (frame.bytes or 0):
                    self._hear(frame, raw)

    def _hear(self, frame: Frame, raw: bytes) -> None:
        if frame.python is None and frame.id is None:
            self._events.put(Event(self, frame))
        elif frame.id != _BEAT:
            future: Future[Any] | None = self._python_version
            if frame.id is not None:
                future = self._futures.pop(frame.id, None)
            if future is None or future.done():
                raise UserError(f"{_WRONG}: nobody requested this result; {_SAME}")
            if frame.error is not None:
                future.set_exception(Refused(printable(frame.error)))
            else:
                future.set_result(frame.python or (frame.answer if frame.bytes is None else raw))

    def _why_lost(self, status: int) -> str:
        said = next((line for line in reversed(self._said) if line), "")
        if self._wrong:
            return self._wrong
        if self._silent:
            silence = f"{agent_program.SILENCE_S:g} s"
            return f"it has said nothing for {silence} (its Python was stopped, or it is overloaded)"
        if self._python_version.done():
            gave_up = f"ssh ended with status {status}: its network or its sshd has failed"
            return f"the connection to it is lost ({said or gave_up})"
        if status == _NO_PYTHON:
            names = " or ".join(name for name in self._pythons if not name.startswith("@"))
            return f"no Python there by the name of {names}; name one by --hosts-python"
        return why_not_reached(self.host, list(self._said), status, self._config)


def pythons(asked: str | None, *, installing: bool = False) -> list[str]:
    """Names of Pythons to look for on hosts: `asked`; else that of `--install`, the path of this one, `python3`.

    installing: whether `install` uses them, or has put istbench on the hosts that lacked it.
    """
    own = f"@{INSTALLED}/{source_key()}/python"
    if asked:
        return [own, asked] if installing else [asked]
    found = [own, sys.executable]
    if installing:
        found.append(f"python{sys.version_info.major}.{sys.version_info.minor}")
    return [*found, "python3"]


@contextlib.contextmanager
def connected(
    hosts: Sequence[Host], names: Sequence[str], config: Path | None = None
) -> Iterator[tuple[list[Connection], Events]]:
    """Connections to all `hosts`, with a Python of one of the `names`, and their events; closes them afterwards.

    config: the file that ssh reads instead of the user's own configuration.

    Raises:
        UserError: if this machine has no ssh. KeyboardInterrupt: after a signal, while the connections are open.
    """
    if shutil.which("ssh") is None and not all(host.local for host in hosts):
        raise UserError("no `ssh` here, which --hosts needs; install the client of OpenSSH")
    events: Events = queue.SimpleQueue()
    found: list[Connection] = []
    over = threading.Event()

    def beat() -> None:
        while not over.wait(_BEATS_S):
            for connection in found:
                connection.beat()

    with Signals() as signals, thread_beside(beat, over):
        try:
            found += [Connection(host, names, events, config) for host in hosts]
            with signals.raised():
                yield found, events
        finally:
            for leave in (Connection.hang_up, Connection.close):
                for connection in found:
                    leave(connection)


def each(connections: Sequence[Connection], call: Callable[[Connection], T]) -> tuple[dict[str, T], list[str]]:
    """The results of `call` by host, and a line for each host where it failed."""
    found, problems = {}, []
    for connection in connections:
        try:
            found[connection.name] = call(connection)
        except (Lost, Refused) as error:
            problems.append(f"{connection.name}: {error}")
    return found, problems


def ask_each(
    connections: Sequence[Connection],
    do: str,
    arguments: Callable[[Connection], Mapping[str, Any]],
    timeout_s: float = ANSWERS_S,
) -> tuple[dict[str, Any], list[str]]:
    """Request the action `do` of all `connections` at once, each with its `arguments`; returns as `each`."""
    asked = {connection.name: connection.ask(do, **arguments(connection)) for connection in connections}
    return each(connections, lambda connection: connection.answer(asked[connection.name], timeout_s))


def told(host: str, answer: Any, kind: type[T]) -> T:
    """The `answer` of `host` as a `kind`.

    Raises:
        UserError: naming the host and the wrong part.
    """
    return convert(answer, kind, lambda path: f"{host}: {path_text(path) or 'its answer'}")
