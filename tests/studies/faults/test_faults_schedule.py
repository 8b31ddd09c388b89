"""Schedules of faults: their texts, random lists, and refusals in a line."""

import pytest

from istbench.base.errors import UserError
from istbench.studies.faults.schedule import check_length, parse_schedule, parse_types, types_here

TYPES = parse_types(["kill", "stop:3s", "damage"], "--types")


def parsed(text, types=TYPES, seed=0):
    return parse_schedule(text, types, seed, "--schedule")


def test_a_list_has_its_faults_in_order_of_time():
    (point,) = parsed("stop:5s@20s, kill@12s,slow@1min")
    found = point.faults(run_s=99.0, seed=3)
    assert [(str(own.type), own.at_s) for own in found] == [("kill", 12.0), ("stop:5s", 20.0), ("slow:5s", 60.0)]
    assert parsed(point.text.partition(", seed")[0])[0].listed == point.listed, "its text is the same schedule"


def test_a_file_has_a_list_with_comments(tmp_path):
    path = tmp_path / "faults.txt"
    path.write_text("kill@12s  # rank 0 or 1\n\nstop:5s@20s\n")
    assert parsed(str(path)) == parsed("kill@12s,stop:5s@20s")


def test_a_random_list_has_as_many_faults_as_its_rate_says_on_average():
    (point,) = parsed("poisson:3")
    counts = [sum(own.at_s < 60.0 for own in point.faults(60.0, seed)) for seed in range(300)]
    assert 2.7 < sum(counts) / len(counts) < 3.3


def test_a_seed_gives_the_same_faults_and_another_seed_others():
    (point,), (other,) = parsed("poisson:2"), parsed("poisson:2", seed=1)
    assert point.faults(60.0, 0) == point.faults(60.0, 0) != point.faults(60.0, 1)
    assert point.faults(60.0, 0) != other.faults(60.0, 0)
    assert point.text != other.text


def test_a_higher_rate_has_the_same_faults_sooner():
    low, high = parsed("poisson:4,2")
    assert [own.at_s for own in high.faults(60.0, 0)[:5]] == pytest.approx(
        [own.at_s / 2 for own in low.faults(60.0, 0)[:5]]
    )


def test_faults_every_so_many_seconds_come_at_the_same_seconds_in_all_runs():
    (point,) = parsed("poisson:20s")
    short, long = point.faults(30.0, 0), point.faults(90.0, 0)
    assert short == long[: len(short)]
    assert point.in_run(60.0) == pytest.approx(3.0)
    assert [own.every_s for own in parsed("poisson:10s,1min")] == [60.0, 10.0]


def test_a_victim_is_a_rank_of_the_run_and_all_ranks_are_hit():
    (point,) = parsed("poisson:4")
    assert {own.victim(3) for seed in range(20) for own in point.faults(60.0, seed)} == {0, 1, 2}


def test_faults_of_links_and_hosts_need_a_place_that_has_them():
    every = parse_types(["kill", "host", "down", "slow"], "--types")
    kinds = [own.kind for own in types_here(every, in_lab=False, several=False, disk=False)]
    assert kinds == ["kill"]
    assert len(types_here(every, in_lab=True, several=True, disk=True)) == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("poisson:-1", "--schedule poisson"),
        ("poisson:x", "--schedule poisson"),
        ("poisson:", "--schedule poisson"),
        ("poisson:1000", "--schedule poisson"),
        ("poisson:20s,-3s", "is not a period"),
        ("poisson:20s,3", "--schedule poisson"),
        ("kil@3s", "did you mean 'kill'"),
        ("kill@-3s", "is not a period"),
        ("stop:-1s@3s", "is not a period"),
        ("kill@0s", "is not a period"),
        ("kill@3", "is not a period"),
        ("kill:5s@3s", "kill does not last; write kill"),
        ("kill@3s,stop", "has no time"),
        ("@3s", "unknown fault"),
        ("nowhere.txt", "is no schedule, and no file"),
        (",@", "has no time"),
    ],
)
def test_a_wrong_schedule_is_refused_in_a_line(text, said):
    with pytest.raises(UserError) as refused:
        parsed(text)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_list_longer_than_every_run_is_refused():
    points = parsed("kill@12s,kill@70s")
    check_length(points, longest_s=71.0)
    with pytest.raises(UserError, match=r"kill@70s comes after the end .* \(61 train seconds\); name earlier"):
        check_length(points, longest_s=61.0)
    check_length(parsed("poisson:4"), longest_s=1.0)
