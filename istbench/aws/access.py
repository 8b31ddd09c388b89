"""Access to the machines of a cluster: the addresses that may connect, and ssh."""

import ipaddress
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Sequence

from istbench.aws.local_files import LocalFiles
from istbench.aws.machines import Machine
from istbench.aws.session import Aws, calls, wait_for
from istbench.aws.template import BOOTED, SSH_PORT
from istbench.base.errors import RunFailed, UserError, printable, shown

_ADDRESS_URL = "https://checkip.amazonaws.com"
_ADDRESS_S = 10.0
_EVERY_S, _BOOTING_S = 5.0, 900.0
_NOT_CONNECTED = 255  # ssh's own exit status
_BOOT_LOG = "/var/log/cloud-init-output.log"
_BOOT_CHECK = (
    "cloud-init status --wait > /dev/null 2>&1; "
    f"test -e {BOOTED} || {{ tail -n 1 {_BOOT_LOG} >&2; exit 1; }}"
)  # fmt: skip


def own_network() -> str:
    """The public address of this computer, as a network of one address; an endpoint of AWS reports it.

    Raises:
        UserError: if the endpoint does not answer with an address.
    """
    way_out = "give --from CIDR, the addresses that may connect, or --ssm"
    try:
        with urllib.request.urlopen(_ADDRESS_URL, timeout=_ADDRESS_S) as answer:
            text = answer.read(100).decode(errors="replace").strip()
    except (urllib.error.URLError, OSError) as error:
        raise UserError(f"{_ADDRESS_URL} does not tell your address ({printable(str(error))}); {way_out}") from None
    try:
        return f"{ipaddress.IPv4Address(text)}/32"
    except ValueError:
        raise UserError(f"{_ADDRESS_URL} answers {shown(text)}, not an IPv4 address; {way_out}") from None


def given_network(text: str) -> str:
    """The network of `--from`: an IPv4 address, or a network such as 203.0.113.0/24.

    Raises:
        UserError: if it is neither, or contains all addresses.
    """
    try:
        network = ipaddress.IPv4Network(text.strip())
    except ValueError:
        raise UserError(
            f"--from {shown(text)} is no IPv4 network; give an address or a network, such as 203.0.113.0/24"
        ) from None
    if network.prefixlen == 0:
        raise UserError(f"--from {network} lets every computer connect; give the network of your own")
    return str(network)


def require_programs(*, ssm: bool) -> None:
    """Check for the programs by which this computer reaches machines.

    Raises:
        UserError: naming a program that is not installed.
    """
    if shutil.which("ssh") is None:
        raise UserError("no `ssh` here, by which istbench reaches the machines; install OpenSSH's client")
    missing = [name for name in ("aws", "session-manager-plugin") if ssm and shutil.which(name) is None]
    if missing:
        raise UserError(f"--ssm needs {' and '.join(missing)}: install the AWS CLI and its Session Manager plugin")


def allow_only(aws: Aws, group: str, network: str) -> bool:
    """Let `network` open ssh connections to security group `group`, in place of the network before.

    Returns whether it was another one.

    Raises:
        RunFailed: if AWS refuses.
    """
    ec2 = aws.client("ec2")
    with calls(f"for the rules of security group {group}"):
        filters = [{"Name": "group-id", "Values": [group]}]
        rules = ec2.describe_security_group_rules(Filters=filters)["SecurityGroupRules"]
    others = [
        rule["SecurityGroupRuleId"]
        for rule in rules
        if not rule["IsEgress"] and rule["FromPort"] == SSH_PORT and rule.get("CidrIpv4", network) != network
    ]
    if others:
        ssh = {"IpProtocol": "tcp", "FromPort": SSH_PORT, "ToPort": SSH_PORT, "CidrIpv4": network}
        changes = [{"SecurityGroupRuleId": identity, "SecurityGroupRule": ssh} for identity in others]
        with calls(f"to let {network} reach the machines"):
            ec2.modify_security_group_rules(GroupId=group, SecurityGroupRules=changes)
    return bool(others)


def on_machine(files: LocalFiles, machine: Machine, command: str) -> subprocess.CompletedProcess[str]:
    """Run a shell command on a machine, over ssh."""
    options = ["-oBatchMode=yes", "-oConnectTimeout=10", "-oServerAliveInterval=5", "-oServerAliveCountMax=6"]
    words = ["ssh", "-F", str(files.ssh_config), *options, "--", machine.host(files.name), command]
    return subprocess.run(words, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """The last line of a command's errors, else its status."""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return printable(lines[-1]) if lines else f"status {done.returncode}"


def wait_booted(files: LocalFiles, machines: Sequence[Machine]) -> None:
    """Return when ssh reaches every machine and its boot script has succeeded.

    Raises:
        RunFailed: naming the machine.
    """
    for machine in machines:

        def reached(machine: Machine = machine) -> subprocess.CompletedProcess[str] | None:
            done = on_machine(files, machine, _BOOT_CHECK)
            # ssh fails until the machine has its host key and the key of the user.
            return None if done.returncode == _NOT_CONNECTED else done

        try:
            done = wait_for(reached, _EVERY_S, _BOOTING_S, f"{machine}: ssh did not reach it")
        except RunFailed as error:
            raise RunFailed(f"{error} ({last_line(on_machine(files, machine, 'true'))})") from None
        if done.returncode:
            way_out = "correct `setup`, then `istbench aws down` and `up`"
            raise RunFailed(f"{machine}: its boot script failed ({last_line(done)}); {way_out}")
