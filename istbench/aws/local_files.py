"""The local files of a cluster, in one folder: its record, its keys, the hosts file and the ssh configuration."""

import base64
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from istbench.aws.machines import Machine
from istbench.aws.spec import ClusterSpec, Hours, RegionName
from istbench.aws.template import USER
from istbench.base.decode import decode_json, encode_own, read_bytes
from istbench.base.errors import RunFailed, UserError, printable
from istbench.base.files import writing_whole
from istbench.launch.torchrun.secret import secret_file

_Amount = Annotated[float, Meta(ge=0, le=1e9)]


class ClusterRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster that this computer created.

    Attributes:
        spec: its spec. region: its region. max_hours: hours until it ends.
        began, ends: times in UTC, as ISO 8601. per_hour: its cost, USD.
        ssm: whether Systems Manager forwards the ssh connections.
    """

    spec: ClusterSpec
    region: RegionName
    max_hours: Hours
    began: str
    ends: str
    per_hour: _Amount
    ssm: bool = False


@dataclass(frozen=True, kw_only=True)
class Keys:
    """Keys of a cluster: the public key of the user, and the private host key, in base64."""

    user: str
    host: str


@dataclass(frozen=True)
class LocalFiles:
    """The folder of cluster `name`."""

    name: str

    @property
    def folder(self) -> Path:
        """`$XDG_CONFIG_HOME/istbench/aws/NAME`, else `~/.config/istbench/aws/NAME`."""
        return _clusters_folder() / self.name

    @property
    def hosts(self) -> Path:
        """The hosts file, for `--hosts`; it exists once `up` has reached every machine."""
        return self.folder / "hosts"

    @property
    def ssh_config(self) -> Path:
        """The ssh configuration, for `--ssh-config`."""
        return self.folder / "ssh_config"

    @property
    def key(self) -> Path:
        """The private key of the user; it never leaves this computer."""
        return self.folder / "key"

    @property
    def known_hosts(self) -> Path:
        """The public host key of the machines, for ssh."""
        return self.folder / "known_hosts"

    def create(self, record: ClusterRecord) -> Keys:
        """Write the record of a new cluster, and make its keys; files of an earlier cluster of this name go.

        Raises:
            UserError: if the folder cannot be written, or there is no `ssh-keygen`.
        """
        forget(self.name)
        host = self.folder / "host_key"
        try:
            self.folder.mkdir(parents=True, mode=0o700)
            for path in (self.key, host):
                _make_key(path, self._host_alias)
            keys = Keys(user=_public(self.key), host=base64.b64encode(host.read_bytes()).decode())
            self.known_hosts.write_text(f"{self._host_alias} {_public(host)}\n")
            for path in (host, host.with_name("host_key.pub")):
                path.unlink()
            with writing_whole(self._record) as file:
                file.write(msgspec.json.encode(record, enc_hook=encode_own))
        except OSError as error:
            raise _cannot_write(self.folder, error) from None
        return keys

    def write_hosts(self, machines: Sequence[Machine]) -> None:
        """Write the hosts file: one machine a line, by rank.

        Raises:
            UserError: if it cannot be written.
        """
        _write(self.hosts, "".join(f"{machine.host(self.name)}\n" for machine in machines))

    def write_ssh_config(self, machines: Sequence[Machine], region: str, *, ssm: bool) -> None:
        """Write the ssh configuration, with the machines' public addresses, or through Systems Manager with `ssm`.

        Raises:
            UserError: if it cannot be written. RunFailed: if a machine has no public address, and `ssm` is False.
        """
        bare = [machine for machine in machines if not (ssm or machine.public)]
        if bare:
            raise RunFailed(f"{bare[0]} has no public address; `istbench aws down`, and `up` with --ssm")
        addresses = {machine.host(self.name): machine.identity if ssm else machine.public for machine in machines}
        proxy = (
            "  ProxyCommand aws ssm start-session --target %h --document-name AWS-StartSSHSession "
            f"--parameters portNumber=%p --region {region}\n"
        )
        text = (
            f"# Written by `istbench aws up`: cluster {self.name} in {region}.\n"
            + "".join(f"Host {name}\n  HostName {address}\n" for name, address in addresses.items())
            + "Host *\n"
            + f"  User {USER}\n"
            + f"  IdentityFile {_quoted(self.key)}\n"
            + "  IdentitiesOnly yes\n"
            + f"  HostKeyAlias {self._host_alias}\n"
            + f"  UserKnownHostsFile {_quoted(self.known_hosts)}\n"
            + "  StrictHostKeyChecking yes\n"
            + (proxy if ssm else "")
        )
        _write(self.ssh_config, text)

    @property
    def _host_alias(self) -> str:
        """The name of the host key, which all machines of the cluster share."""
        return f"istbench-{self.name}"

    @property
    def _record(self) -> Path:
        return self.folder / "cluster.json"


def records() -> dict[str, ClusterRecord]:
    """The clusters that this computer created and did not take down, by name.

    Raises:
        UserError: if a record is damaged.
    """
    found = {}
    for path in sorted(_clusters_folder().glob("*/cluster.json")):
        way_out = f"delete {path.parent}; `istbench aws status` lists clusters by their tag"
        content = read_bytes(path, "a record of `istbench aws up`")
        found[path.parent.name] = decode_json(content, ClusterRecord, str(path), way_out)
    return found


def forget(name: str) -> None:
    """Delete the folder of a cluster.

    Raises:
        UserError: if it cannot be deleted.
    """
    folder = LocalFiles(name).folder
    try:
        if folder.exists():
            shutil.rmtree(folder)
    except OSError as error:
        raise UserError(f"cannot delete {folder}: {error.strerror}; delete it by hand") from None


def _clusters_folder() -> Path:
    return secret_file().parent / "aws"


def _make_key(path: Path, comment: str) -> None:
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
    try:
        made = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise UserError("no `ssh-keygen` here, which makes the keys of a cluster; install OpenSSH") from None
    if made.returncode:
        said = [*made.stderr.splitlines(), f"status {made.returncode}"][0]
        raise UserError(f"ssh-keygen makes no key in {path.parent}: {printable(said)}; check the folder")


def _public(key: Path) -> str:
    """The public key beside `key`, without its comment."""
    return " ".join(key.with_name(f"{key.name}.pub").read_text().split()[:2])


def _quoted(path: Path) -> str:
    return f'"{path.absolute()}"'.replace("%", "%%")


def _write(path: Path, text: str) -> None:
    try:
        with writing_whole(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise _cannot_write(path, error) from None


def _cannot_write(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot write {path}: {error.strerror}; name another place with XDG_CONFIG_HOME")
