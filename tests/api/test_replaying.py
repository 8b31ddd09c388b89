"""Lines on standard error while a command replays."""

from istbench.api import replaying


def test_a_long_replay_tells_how_many_runs_are_done(monkeypatch, capsys):
    monkeypatch.setattr(replaying, "_LINE_S", 0.0)
    with replaying.replaying() as tell:
        tell(3, 2_000)
        tell(1_200, 2_000)
    assert capsys.readouterr().err == "replayed 3 of 2,000 runs\nreplayed 1,200 of 2,000 runs\n"


def test_a_short_replay_tells_nothing(capsys):
    with replaying.replaying() as tell:
        tell(1, 2)
        tell(2, 2)
    assert capsys.readouterr().err == ""
