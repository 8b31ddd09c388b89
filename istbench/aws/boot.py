"""What a machine does when it boots: first it arms its own end, then it is set up."""

from istbench.aws.spec import ClusterSpec

HOME = "/opt/istbench"
BOOTED = f"{HOME}/booted"

# `shutdown` is the surest, but a reboot forgets it; the timer stands on disk.
_ARM = """\
#!/bin/bash
shutdown -P +${MaxMinutes} 'the hours of this istbench cluster are over'
end=$(date -u -d '+${MaxMinutes} minutes' '+%Y-%m-%d %H:%M:%S UTC')
units=/etc/systemd/system
printf '[Service]\\nType=oneshot\\nExecStart=/sbin/shutdown -P now\\n' > $units/istbench-end.service
printf '[Timer]\\nOnCalendar=%s\\nPersistent=true\\n[Install]\\nWantedBy=timers.target\\n' "$end" \\
    > $units/istbench-end.timer
systemctl daemon-reload
systemctl enable --now istbench-end.timer
"""


def user_data(spec: ClusterSpec) -> str:
    """The script of a machine's first boot, for CloudFormation's `Fn::Sub`, which fills in `MaxMinutes`."""
    setup = "\n".join(line.replace("${", "${!") for line in spec.setup)
    return f"{_ARM}set -e\nexport DEBIAN_FRONTEND=noninteractive\n{setup}\nmkdir -p {HOME}\ntouch {BOOTED}\n"
