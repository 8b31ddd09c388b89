"""What a cluster costs at most, said before anything starts."""

from dataclasses import dataclass

from istbench.aws.spec import ClusterSpec
from istbench.cluster.profile import load_profile, names
from istbench.errors import UserError

# Estimates from memory of AWS's list prices in us-east-1: a public IPv4 address an hour, a GiB of gp3 a month.
_ADDRESS_PER_HOUR = 0.005
_GIB_PER_HOUR = 0.08 / 730


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of a cluster, USD.

    Attributes:
        machines: number of them. max_hours: after which they end.
        machine_per_hour: the price of one. source: where that is from.
        extras_per_hour: of one machine's disk and address.
    """

    machines: int
    max_hours: float
    machine_per_hour: float
    source: str
    extras_per_hour: float

    @property
    def per_hour(self) -> float:
        """Of the whole cluster, disks and addresses included."""
        return self.machines * (self.machine_per_hour + self.extras_per_hour)

    @property
    def most(self) -> float:
        """If it runs until its hours are over."""
        return self.per_hour * self.max_hours


def cluster_cost(spec: ClusterSpec, max_hours: float, price: float | None = None) -> Cost:
    """What `spec` costs for at most `max_hours`; `price` of a machine an hour goes before all others.

    Raises:
        UserError: where no price is known.
    """
    given = price if price is not None else spec.price_per_hour
    if given is not None:
        per_hour, source = given, "as given"
    elif spec.instance_type in names():
        profile = load_profile(str(spec.instance_type))
        per_hour, source = profile.price_per_hour, f"{profile.price_source}, {profile.price_date}"
    else:
        raise UserError(
            f"no price of {spec.instance_type} is known; look it up and give --price USD an hour, or price_per_hour"
        )
    return Cost(
        machines=spec.count,
        max_hours=max_hours,
        machine_per_hour=per_hour,
        source=source,
        extras_per_hour=_ADDRESS_PER_HOUR + spec.volume_gib * _GIB_PER_HOUR,
    )


def cost_lines(spec: ClusterSpec, cost: Cost, region: str) -> list[str]:
    """The cost for readers."""
    spot = "; spot is mostly cheaper, and never dearer than this" if spec.spot else ""
    return [
        f"cluster {spec.cluster} in {region}: {cost.machines} x {spec.instance_type} at "
        f"${cost.machine_per_hour:.4g} an hour ({cost.source}{spot})",
        f"with disks and addresses ${cost.per_hour:.2f} an hour (estimate); the machines end themselves after "
        f"{cost.max_hours:g} h",
        f"at most ${cost.most:.2f}, without taxes and without what is downloaded",
    ]
