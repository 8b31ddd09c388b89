"""Specs of clusters: read from TOML with bounds; presets; what they cost."""

import pytest
from garbage import VALUES, as_toml, damaged, one_line, quick
from hypothesis import given
from hypothesis import strategies as st

from istbench.aws.cost import cluster_cost, cost_lines
from istbench.aws.spec import preset, presets, read_spec
from istbench.base.errors import UserError

SPEC = {
    "instance_type": "c7i.4xlarge", "count": 3, "name": "three", "region": "eu-west-1", "zone": "eu-west-1b",
    "spot": True, "placement_group": False, "image": "/aws/service/debian/12/amd64",
    "root_device": "/dev/xvda", "volume_gib": 100,
    "max_hours": 1.5, "price_per_hour": 0.7, "setup": ["apt-get update"],
}  # fmt: skip


def read(folder, table):
    path = folder / "cluster.toml"
    path.write_text(as_toml(table))
    return read_spec(path)


def test_a_spec_is_what_its_file_says(tmp_path):
    spec = read(tmp_path, SPEC)
    assert {name: getattr(spec, name) for name in SPEC} == SPEC
    assert spec.cluster == "three"
    assert read(tmp_path, {"instance_type": "m5.large", "count": 2}).cluster == "2xm5-large"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"instance_type": "m5"}, "line 1: instance_type must be an instance type, such as m5.2xlarge, not 'm5'"),
        ({"count": 0}, "count must be a whole number of at least 1, not 0"),
        ({"count": 1000}, "count must be a whole number of at most 32"),
        ({"max_hours": 1000}, "max_hours must be a number of at most 240"),
        ({"region": "us-east"}, "region must be a region, such as us-east-1"),
        ({"zone": "us-east-1b"}, "zone us-east-1b is not in region eu-west-1; leave one of them out"),
        ({"image": "ami-12345678"}, "image must be a public SSM parameter"),
        ({"setup": ["a\nb"]}, "setup[0] must be a line of shell"),
        ({"setup": ["x" * 1000] * 9}, "setup has over 8,000 characters"),
        ({"name": "UPPER"}, "name must be 1 to 40 lower-case letters"),
        ({"spott": True}, "spott: unknown name; did you mean 'spot'?"),
    ],
)
def test_a_wrong_spec_is_refused_in_one_line(tmp_path, change, message):
    with pytest.raises(UserError, match="cluster.toml") as refused:
        read(tmp_path, {**SPEC, **change})
    assert message in one_line(refused.value)


@quick(40)
@given(table=damaged(SPEC))
def test_a_damaged_spec(tmp_path_factory, table):
    _read_or_refuse(tmp_path_factory, table)


@quick(60)
@given(name=st.sampled_from(sorted(SPEC)), value=VALUES)
def test_any_value_for_any_field(tmp_path_factory, name, value):
    _read_or_refuse(tmp_path_factory, {**SPEC, name: value})


def _read_or_refuse(tmp_path_factory, table):
    try:
        spec = read(tmp_path_factory.getbasetemp(), table)
    except UserError as error:
        refused = one_line(error)
    else:
        assert 1 <= spec.count <= 32
        return
    assert "cluster.toml" in refused


def test_presets_are_the_papers_clusters_and_an_unknown_one_names_the_nearest():
    assert sorted(presets()) == [f"{n}x{kind}" for n in (2, 4, 8) for kind in ("m5.2xlarge", "p3.2xlarge")]
    assert (preset("8xp3.2xlarge").count, preset("8xp3.2xlarge").instance_type) == (8, "p3.2xlarge")
    with pytest.raises(UserError, match="did you mean '4xm5.2xlarge'"):
        preset("4xm5.xlarge")


def test_the_cost_is_the_profiles_price_or_the_one_given(tmp_path):
    cost = cluster_cost(preset("4xm5.2xlarge"), 2.0)
    machines = 4 * 2 * 0.384
    assert machines < cost.most < machines * 1.05
    assert cost.most == pytest.approx(2 * cost.per_hour)
    assert "us-east-1" in cost.source
    assert cluster_cost(preset("4xm5.2xlarge"), 2.0, 1.0).machine_per_hour == 1.0
    spec = read(tmp_path, SPEC)
    assert cluster_cost(spec, 1.0).machine_per_hour == 0.7
    said = cost_lines(spec, cluster_cost(spec, 1.0), "eu-west-1")
    assert "3 x c7i.4xlarge at $0.7 an hour (as given; a spot machine costs this at most" in said[0]
    assert said[-1].startswith("at most $2.15")
    unknown = {name: value for name, value in SPEC.items() if name != "price_per_hour"}
    with pytest.raises(UserError, match=r"no price is known for c7i.4xlarge; look it up, and give --price USD"):
        cluster_cost(read(tmp_path, unknown), 1.0)
