"""The example of docs/profiles.md is a profile, and every field has its line there."""

import dataclasses
import re
from pathlib import Path

from istbench.cluster.profile import ClusterProfile, parse_profile

PAGE = (Path(__file__).parents[2] / "docs" / "profiles.md").read_text(encoding="utf-8")


def test_the_examples_load():
    short, text, gpus = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert parse_profile(short, name="mine", where="docs/profiles.md").bandwidth_out == 1e9
    profile = parse_profile(text, name="mine", where="docs/profiles.md")
    assert (profile.host.nodes, profile.rack.hosts, profile.uniform) == (4, 8, False)
    on_hosts = parse_profile(gpus, name="mine", where="docs/profiles.md")
    assert (on_hosts.host_nodes, on_hosts.collectives, on_hosts.priced) == (8, "nccl", True)


def test_every_field_is_described():
    for field in dataclasses.fields(ClusterProfile):
        assert field.name == "name" or re.search(rf"`\[?{field.name}\]?`|^{field.name} =", PAGE, re.MULTILINE)
