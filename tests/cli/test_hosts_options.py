"""`--hosts`: what is typed, as hosts are to run it, and what does not go with it."""

from pathlib import Path

import pytest

from istbench.base.errors import UserError
from istbench.base.options.run import RunRequest
from istbench.cli.run_command import command
from istbench.launch.backends.choose import backend_options
from istbench.launch.hosts.run import HostsRun

CELL = ["--method", "ist", "--workload", "toy"]
OF_THIS_HOST = (*(option.name for option in backend_options()), "restarts", "out", "cluster", "explain", "as_json")


def words_of(*typed):
    given = dict(command.make_context("run", [*CELL, *typed]).params)
    for name in OF_THIS_HOST:
        del given[name]
    again = given.pop("again")
    run = HostsRun(request=RunRequest(**given), out=Path("out"), again=again)
    first, *words = run.words({}, None)
    assert first == "run"
    return words


def test_what_was_typed_is_run_there_as_it_was_typed_and_nothing_else():
    typed = ["--set", "lr=.1", "--set=local_steps=8", "--eval-every", "30s", "--again", "--threads=1"]
    typed += ["--sink", "mllog=a b"]
    assert sorted(words_of(*typed)) == sorted(
        [
            "--method=ist",
            "--workload=toy",
            "--set=lr=.1",
            "--set=local_steps=8",
            "--eval-every=30s",
            "--again",
            "--threads=1",
            "--sink=mllog=a b",
        ]
    )


def test_shares_of_several_nodes_are_run_there_on_the_nodes_of_torchrun():
    assert set(words_of("--nodes=2", "--shares=1,.5")) - set(words_of()) == {"--shares=1,0.5"}


def test_what_the_host_that_asks_does_itself_is_left_out():
    own = [
        "--hosts",
        "a,b",
        "--hosts-python=/opt/py",
        f"--ssh-config={__file__}",
        "--json",
        "--explain",
        "--out",
        "x",
        "--cluster",
        "p3.2xlarge",
        "--nodes",
        "2",
    ]
    assert sorted(words_of(*own)) == ["--method=ist", "--workload=toy"]


def test_values_that_look_like_options_or_have_spaces_stay_one_word():
    assert "--data=--hosts a dir" in words_of("--data", "--hosts a dir")


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        (["--nodes", "3", "--hosts", "a,b"], "--hosts has 2 processes for 3 nodes; name more hosts, or slots"),
        (["--hosts", "a,a"], "names a twice"),
        (["--hosts", "a:0"], "--hosts 'a:0' has an impossible port; give 1 to 65535"),
        (["--hosts", "a", "--hosts-python", "-c"], "must be the path of a Python"),
        (["--hosts-python", "/opt/py"], "--hosts-python is for the hosts of --hosts; give --hosts as well"),
        (["--ssh-config", __file__], "--ssh-config is for the hosts of --hosts; give --hosts as well"),
        (["--hosts", "a", "--ssh-config", "no/file"], "^no file no/file; give an ssh configuration file"),
        (
            ["--ssh-config", "/", "--hosts", "a"],
            "^/ is a directory, not a file; give an ssh configuration file",
        ),
        (["--hosts", "a", "--ssh-config", ""], "--ssh-config: '' is not the name of a file"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_asked(monkeypatch, typed, problem):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match=problem):
        command.main([*CELL, *typed], standalone_mode=False)


def test_hosts_under_torchrun_are_refused(monkeypatch):
    told = {"TORCHELASTIC_RUN_ID": "x", "RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    for name, value in {**told, "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1, "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(UserError, match="torchrun and --hosts both start nodes: leave one of them out"):
        command.main([*CELL, "--hosts", "a"], standalone_mode=False)


def test_without_ssh_the_way_out_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="no `ssh` here, which --hosts needs"):
        command.main([*CELL, "--hosts", "a"], standalone_mode=False)
