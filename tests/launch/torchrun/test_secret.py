"""The secret that ranks under torchrun share: from the environment, or a file of the user's."""

import os
import stat

import pytest

from istbench.base.errors import UserError
from istbench.launch.torchrun.secret import run_secret, secret_file


@pytest.fixture
def home(tmp_path):
    return {"HOME": str(tmp_path)}


def test_a_secret_that_is_given_counts(home):
    assert run_secret({**home, "ISTBENCH_SECRET": " 0123456789abcdef\n"}) == b"0123456789abcdef"
    assert not secret_file(home).exists()
    with pytest.raises(UserError, match="ISTBENCH_SECRET holds 5 characters; a secret needs 16 or more"):
        run_secret({**home, "ISTBENCH_SECRET": "short"})


def test_without_one_all_processes_of_a_user_share_a_new_one_that_nobody_else_reads(home, tmp_path):
    before = os.umask(0)
    try:
        first = run_secret(home)
    finally:
        os.umask(before)
    assert run_secret(home) == first
    assert len(first) == 64
    assert first != run_secret({"HOME": str(tmp_path / "another")})
    assert stat.S_IMODE(secret_file(home).stat().st_mode) == 0o600
    assert stat.S_IMODE(secret_file(home).parent.stat().st_mode) == 0o700
    assert [path.name for path in secret_file(home).parent.iterdir()] == ["secret"]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o602])
def test_a_file_that_others_reach_is_refused(home, mode):
    run_secret(home)
    secret_file(home).chmod(mode)
    with pytest.raises(
        UserError, match=r"secret, the secret of your runs, can be read or written by others; delete"
    ):
        run_secret(home)


def test_a_link_and_a_short_file_are_refused(home, tmp_path):
    path = secret_file(home)
    run_secret(home)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="cannot read"):
        run_secret(home)
    path.unlink()
    path.touch(mode=0o600)
    with pytest.raises(UserError, match="holds 0 characters"):
        run_secret(home)


def test_a_home_that_cannot_be_written_is_named_with_the_way_out(tmp_path):
    (tmp_path / "home").touch()
    with pytest.raises(
        UserError, match="cannot write .*/home/.config/istbench/secret: .*; set ISTBENCH_SECRET to the same"
    ):
        run_secret({"HOME": str(tmp_path / "home")})
