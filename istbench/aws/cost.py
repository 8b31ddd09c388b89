"""The maximum cost of a cluster."""

from dataclasses import dataclass

from istbench.aws.spec import ClusterSpec
from istbench.base.errors import UserError
from istbench.cluster.profile import load_profile, names

# Estimates of AWS's list prices in us-east-1: a public IPv4 address an hour, a GiB of gp3 a month.
_ADDRESS_PER_HOUR = 0.005
_GIB_PER_HOUR = 0.08 / 730


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a cluster, USD.

    Attributes:
        machines: number of machines. max_hours: hours until they end.
        machine_per_hour: price of one machine. source: origin of that price.
        extras_per_hour: price of the disk and the address of one machine.
    """

    machines: int
    max_hours: float
    machine_per_hour: float
    source: str
    extras_per_hour: float

    @property
    def per_hour(self) -> float:
        """Cost of the whole cluster, with disks and addresses."""
        return self.machines * (self.machine_per_hour + self.extras_per_hour)

    @property
    def most(self) -> float:
        """Cost if the cluster runs until its end."""
        return self.per_hour * self.max_hours


def cluster_cost(spec: ClusterSpec, max_hours: float, price: float | None = None) -> Cost:
    """The cost of `spec` for `max_hours`; `price`, USD for a machine and hour, takes precedence.

    Raises:
        UserError: if no price is known.
    """
    given = price if price is not None else spec.price_per_hour
    if given is not None:
        per_hour, source = given, "as given"
    elif spec.instance_type in names():
        profile = load_profile(str(spec.instance_type))
        per_hour, source = profile.price_per_hour, f"{profile.price_source}, {profile.price_date}"
    else:
        raise UserError(
            f"no price is known for {spec.instance_type}; look it up, and give --price USD or price_per_hour"
        )
    return Cost(
        machines=spec.count,
        max_hours=max_hours,
        machine_per_hour=per_hour,
        source=source,
        extras_per_hour=_ADDRESS_PER_HOUR + spec.volume_gib * _GIB_PER_HOUR,
    )


def cost_lines(spec: ClusterSpec, cost: Cost, region: str) -> list[str]:
    """The cost, as lines of text."""
    spot = "; a spot machine costs this at most, and mostly less" if spec.spot else ""
    return [
        f"cluster {spec.cluster} in {region}: {cost.machines} x {spec.instance_type} at "
        f"${cost.machine_per_hour:.4g} an hour ({cost.source}{spot})",
        f"with disks and addresses ${cost.per_hour:.2f} an hour (estimate); the machines end themselves after "
        f"{cost.max_hours:g} h",
        f"at most ${cost.most:.2f}, without taxes and downloads",
    ]
