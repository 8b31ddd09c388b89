"""What a worker does, as its launcher reads it, and how long nothing changed."""

from istbench.base.activity import Activity, Progress, Unchanged, read_activity


def test_a_file_has_what_a_worker_does(tmp_path):
    path, activity = tmp_path / "activity", Activity()
    assert read_activity(path) is None
    activity.share(path)
    assert read_activity(path).phase == ""
    activity.begin("training step", 7, timed=True)
    with activity.waiting("averaging"):
        told = read_activity(path)
        assert (str(told), told.timed, told.waits) == ("training step 7 (operation: averaging)", True, True)
    told = read_activity(path)
    assert (str(told), told.timed, told.waits) == ("training step 7", True, False)
    assert told.progress == Progress(0, 0.0, 0.0)
    activity.start()
    activity.finish(8)
    told = read_activity(path)
    assert told.progress.step == 8
    assert 0 < told.progress.began <= told.progress.at
    assert told == activity.look()
    path.write_bytes(b"torn")
    assert read_activity(path) is None


def test_a_worker_that_has_said_nothing_is_in_no_phase_and_no_step():
    activity = Activity()
    assert str(activity.look()) == ""
    with activity.waiting("averaging"):
        assert str(activity.look()) == "(operation: averaging)"


def test_a_text_too_long_for_its_place_is_cut(tmp_path):
    activity = Activity()
    activity.share(tmp_path / "activity")
    activity.begin("é" * 100)
    assert str(read_activity(tmp_path / "activity")) == "é" * 40


def test_batches_are_timed_until_the_last_one_is_used():
    activity, seen = Activity(), []
    ticks = set()
    for number in activity.timing([1, 2]):
        seen.append((number, activity.look().timed))
        ticks.add(activity.look().ticks)
    assert seen == [(1, True), (2, True)]
    assert len(ticks) == 2
    assert not activity.look().timed
    batches = activity.timing([1, 2])
    next(batches)
    batches.close()  # by one who needs no more
    assert not activity.look().timed


def test_seconds_without_a_change_leave_out_those_in_which_nobody_looked():
    unchanged = Unchanged(longest_look_s=2.0)
    assert [unchanged.seconds("a", 1, now) for now in (10, 11, 13, 100)] == [0, 1, 3, 5]
    assert unchanged.seconds("b", 1, 100) == 0
    assert unchanged.seconds("a", 2, 101) == 0
    assert unchanged.seconds("a", 2, 102) == 1
