"""The clusters a command is asked for: by name or file, with links of their own or of another bandwidth."""

import dataclasses
from collections.abc import Sequence

from istbench.cluster.profile import ClusterProfile, bandwidth_text, load_profile
from istbench.errors import UserError


def select_clusters(names: Sequence[str], bandwidths: Sequence[float] = ()) -> dict[str, list[ClusterProfile]]:
    """The profiles, by rising bandwidth, of each of the clusters `names` (built in, or FILE.toml), by name.

    bandwidths: of its links, bits/s, each a profile named after it (`m5.2xlarge at 100 Mbit/s`); without them,
    the one profile as it is.

    Raises:
        UserError: as `load_profile` does, and where two files have the same name.
    """
    loaded = [load_profile(name) for name in dict.fromkeys(names)]
    for profile in loaded:
        if sum(other.name == profile.name for other in loaded) > 1:
            raise UserError(f"two clusters are called {profile.name!r}; give one of the files another name")
    rising = sorted(set(bandwidths))
    return {profile.name: [_with_links(profile, bits) for bits in rising] or [profile] for profile in loaded}


def _with_links(profile: ClusterProfile, bits_per_second: float) -> ClusterProfile:
    name = f"{profile.name} at {bandwidth_text(bits_per_second)}"
    return dataclasses.replace(profile.with_bandwidth(bits_per_second), name=name)
