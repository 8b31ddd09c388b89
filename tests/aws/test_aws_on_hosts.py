"""The boot script and the local files of a cluster, on machines with real sshds, for `doctor` and `run --hosts`."""

import shutil
import subprocess

import msgspec
import pytest
import ssh_hosts

from istbench.aws.access import on_machine, wait_booted
from istbench.aws.local_files import ClusterRecord, LocalFiles
from istbench.aws.machines import Machine
from istbench.aws.spec import RegionName, SetupLine, preset
from istbench.aws.template import user_data
from istbench.aws.unfetched import unfetched

MACHINES = [
    Machine(identity=f"i-{rank:08x}", rank=rank, state="running", kind="m5.2xlarge", address="", public=address)
    for rank, address in enumerate(("10.79.0.1", "10.79.0.2"))
]
SPEC = msgspec.structs.replace(preset("2xm5.2xlarge"), setup=[SetupLine("echo ${UID:-none} > /var/lib/set-up")])
# Each machine has its own /etc, /home and /var/lib. Its `systemctl` starts sshd with the keys of the boot script.
# The user gets the number of root, who alone may read the Python of some of our machines.
_MACHINE = """
set -e
own=$1 server=$2 config=$3
mkdir -p $own/bin $own/etc
cp -a /etc/. $own/etc
mount --bind $own/etc /etc
mount -t tmpfs none /home
mount -t tmpfs none /var/lib
mount -t tmpfs none $4
sed -e 's|^HostKey .*|HostKey /etc/ssh/ssh_host_ed25519_key|' \
    -e 's|^AuthorizedKeysFile .*|AuthorizedKeysFile .ssh/authorized_keys|' $config > $own/sshd_config
cat > $own/bin/systemctl <<END
#!/bin/sh
test "\\$1" = restart || exit 0
kill $server
while ss -ltn | grep -q :22; do sleep .05; done
exec /usr/sbin/sshd -f $own/sshd_config
END
cat > $own/bin/useradd <<'END'
#!/bin/sh
/usr/sbin/useradd "$@" && /usr/sbin/usermod -o -u 0 istbench
END
printf '#!/bin/sh\\necho "$@" > %s/shutdown\\n' $own > $own/bin/shutdown
chmod +x $own/bin/*
PATH=$own/bin:$PATH bash $own/boot
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def hosts(place):
    if reason := ssh_hosts.why_not():
        pytest.skip(reason)
    with ssh_hosts.hosts(2, place / "hosts") as found:
        yield found


@pytest.fixture(scope="module")
def files(place, hosts):
    """The local files of a cluster, as `up` writes them; its machines have booted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(place / "my config"))
        patch.setenv("PATH", hosts.path)
        files = LocalFiles("two")
        region = RegionName("us-east-1")
        record = ClusterRecord(spec=SPEC, region=region, max_hours=1.0, began="", ends="", per_hour=0.8)
        keys = files.create(record)
        files.write_ssh_config(MACHINES, region, ssm=False)
        values = {"MaxMinutes": "60", "UserKey": keys.user, "HostKey": keys.host}
        boot = user_data(SPEC)
        for name, value in values.items():
            boot = boot.replace(f"${{{name}}}", value)
        (place / "only-here" / "folder").mkdir(parents=True)
        for number, server in enumerate(hosts.servers):
            own = place / f"machine{number}"
            own.mkdir()
            (own / "boot").write_text(boot.replace("${!", "${"))
            enter = ["nsenter", "--target", str(server.pid), "--mount", "--net", "--uts"]
            words = ["bash", "-c", _MACHINE, "bash", own, str(server.pid), hosts.folder / f"sshd{number}"]
            booted = subprocess.run([*enter, *words, place / "only-here"], capture_output=True, text=True)
            assert booted.returncode == 0, booted.stderr
        wait_booted(files, MACHINES)
        files.write_hosts(MACHINES)
        yield files


def test_the_boot_script_arms_the_end_and_lets_the_user_in_by_key_alone(place, hosts, files):
    for number in (0, 1):
        assert (place / f"machine{number}" / "shutdown").read_text().startswith("-P +60 ")
        units = place / f"machine{number}" / "etc/systemd/system"
        assert "OnCalendar=" in (units / "istbench-end.timer").read_text()
    asked = on_machine(files, MACHINES[0], "pwd; cat /var/lib/set-up; stat -c %a ~/.ssh/authorized_keys")
    assert asked.stdout.split() == ["/home/istbench", "0", "600"]
    shadow = (place / "machine0" / "etc/shadow").read_text()
    assert "\nistbench:*:" in shadow  # no password


def test_a_machine_with_another_host_key_is_not_trusted(hosts, files):
    known = files.known_hosts.read_text()
    files.known_hosts.write_text(f"istbench-two {(hosts.folder / 'host_key.pub').read_text()}")
    try:
        asked = on_machine(files, MACHINES[0], "true")
    finally:
        files.known_hosts.write_text(known)
    assert asked.returncode == 255
    assert "Host key verification failed" in asked.stderr


def test_doctor_and_run_go_by_the_hosts_file_and_the_ssh_configuration(place, hosts, files):
    here = place / "only-here" / "folder"  # not on the machines, so runs there are in the home directory

    def istbench(*words):
        command = hosts.command(*words, "--hosts", files.hosts, "--ssh-config", files.ssh_config)
        return subprocess.run(command, env=hosts.environment, cwd=here, capture_output=True, text=True)

    doctor = istbench("doctor")
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    assert "two-0" in doctor.stdout
    assert "two-1" in doctor.stdout
    train = ("run", "--method", "ist", "--workload", "toy", "--steps", "20", "--threads", "1", "--out", "results")
    run = istbench(*train)
    assert run.returncode == 0, run.stderr
    (local,) = (here / "results" / "runs").iterdir()
    listed = on_machine(files, MACHINES[0], "ls ~/results/runs").stdout.split()
    assert listed == [local.name]
    assert unfetched(files, MACHINES, here / "results") == []
    shutil.rmtree(local)
    assert unfetched(files, MACHINES, here / "results") == [f"two-0: ./results/runs/{local.name}"]
