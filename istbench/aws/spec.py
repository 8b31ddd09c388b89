"""The spec of a cluster on AWS, from a TOML file or a preset."""

import re
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from istbench.base.decode import convert, parse_toml, read_text, toml_lines
from istbench.base.errors import UserError, unknown_name

MOST_MACHINES = 32  # AWS refuses the larger template of more machines
# A boot takes some minutes; a month is a typing error.
LEAST_HOURS, MOST_HOURS = 0.25, 240.0
_MOST_SETUP_BYTES = 8000  # AWS allows 16 KiB of user data

Machines = Annotated[int, Meta(ge=1, le=MOST_MACHINES)]
Hours = Annotated[float, Meta(ge=LEAST_HOURS, le=MOST_HOURS)]
Dollars = Annotated[float, Meta(gt=0, le=1000)]
Gibibytes = Annotated[int, Meta(ge=16, le=4096)]


class _Text(str):
    """Text that matches `pattern`; `says` describes it for messages."""

    pattern = ""
    says = ""

    @classmethod
    def decode(cls, value: Any) -> "_Text":
        if not isinstance(value, str) or not re.fullmatch(cls.pattern, value, re.ASCII):
            raise ValueError(f"must be {cls.says}")
        return cls(value)

    def encode_plain(self) -> str:
        """The text itself."""
        return str(self)


class ClusterName(_Text):
    """The name of a cluster: part of the names of its resources, and the value of their tag."""

    pattern = r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?"
    says = "1 to 40 lower-case letters, digits and hyphens, such as speech-4"


class InstanceType(_Text):
    """A type of machine."""

    pattern = r"[a-z][a-z0-9-]{1,20}\.[a-z0-9-]{1,20}"
    says = "an instance type, such as m5.2xlarge"


class RegionName(_Text):
    """A region of AWS."""

    pattern = r"[a-z]{2}(?:-[a-z]{2,10}){1,2}-[1-9]"
    says = "a region, such as us-east-1"


class Zone(_Text):
    """An availability zone of a region."""

    pattern = r"[a-z]{2}(?:-[a-z]{2,10}){1,2}-[1-9][a-z]"
    says = "an availability zone, such as us-east-1b"


class ImageParameter(_Text):
    """A public parameter of Systems Manager that names a machine image."""

    pattern = r"/aws/service/[A-Za-z0-9._/-]{1,200}"
    says = "a public SSM parameter that names an image, such as /aws/service/canonical/ubuntu/..."


class RootDevice(_Text):
    """The name of an image's disk."""

    pattern = r"/dev/[a-z][a-z0-9]{1,14}"
    says = "a device, such as /dev/sda1"


class SetupLine(_Text):
    """A line of shell."""

    pattern = r"[ -~\t]{1,1000}"
    says = "a line of shell in ASCII, of at most 1000 characters"


UBUNTU = ImageParameter("/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id")
_PYTHON = SetupLine("apt-get update -qq && apt-get install -y -qq python3-venv")
# The last driver for Volta GPUs, from Ubuntu. No image of AWS has both this driver and a current Python.
_VOLTA_DRIVER = SetupLine(
    "apt-get install -y -qq ubuntu-drivers-common nvidia-utils-580-server"
    " && ubuntu-drivers install --gpgpu nvidia:580-server && modprobe nvidia"
)
_PRESET_TYPES: dict[str, tuple[SetupLine, ...]] = {
    "m5.2xlarge": (_PYTHON,),
    "p3.2xlarge": (_PYTHON, _VOLTA_DRIVER),
}
_PRESET_COUNTS = (2, 4, 8)


class ClusterSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster of machines of one type.

    Attributes:
        instance_type: type of every machine. count: number of machines.
        name: name of the cluster; None builds one from count and type.
        region: None takes the user's default. zone: a zone of the region; None leaves the choice to AWS.
        spot: whether to take cheaper spare capacity, which AWS may take back.
        placement_group: whether AWS places the machines close to one another.
        image: public SSM parameter with a machine image of Debian's kind.
        root_device: name of the image's disk, the one that AWS encrypts.
        volume_gib: size of each machine's disk.
        max_hours: the machines end themselves after so many hours; None leaves it to `--max-hours`.
        price_per_hour: USD for one machine; None takes the price from the cluster profile of the instance type.
        setup: shell lines that root runs at the boot of each machine.
    """

    instance_type: InstanceType
    count: Machines
    name: ClusterName | None = None
    region: RegionName | None = None
    zone: Zone | None = None
    spot: bool = False
    placement_group: bool = True
    image: ImageParameter = UBUNTU
    root_device: RootDevice = RootDevice("/dev/sda1")
    volume_gib: Gibibytes = 64
    max_hours: Hours | None = None
    price_per_hour: Dollars | None = None
    setup: Annotated[list[SetupLine], Meta(max_length=32)] = msgspec.field(default_factory=lambda: [_PYTHON])

    @property
    def cluster(self) -> str:
        """The cluster's name, by default such as `4xm5-2xlarge`."""
        return str(self.name or f"{self.count}x{self.instance_type.replace('.', '-')}")


def read_spec(path: Path) -> ClusterSpec:
    """Read a spec from a TOML file.

    Raises:
        UserError: with the file and the line.
    """
    text = read_text(path, "a TOML cluster spec")
    locate = toml_lines(text, str(path))
    spec = convert(parse_toml(text, str(path)), ClusterSpec, locate)
    if spec.zone is not None and spec.region is not None and spec.zone[:-1] != spec.region:
        raise UserError(f"{locate(('zone',))} {spec.zone} is not in region {spec.region}; leave one of them out")
    if sum(len(line) + 1 for line in spec.setup) > _MOST_SETUP_BYTES:
        raise UserError(f"{locate(('setup',))} has over {_MOST_SETUP_BYTES:,} characters; fetch a script instead")
    return spec


def presets() -> dict[str, ClusterSpec]:
    """The paper's clusters, by name: `2xm5.2xlarge` to `8xp3.2xlarge`."""
    return {
        f"{count}x{kind}": ClusterSpec(instance_type=InstanceType(kind), count=count, setup=list(setup))
        for kind, setup in _PRESET_TYPES.items()
        for count in _PRESET_COUNTS
    }


def preset(name: str) -> ClusterSpec:
    """The preset `name`.

    Raises:
        UserError: if it is unknown, with the nearest name.
    """
    known = presets()
    if name not in known:
        raise unknown_name("preset", name, known)
    return known[name]
