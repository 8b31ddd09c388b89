"""What the tests of AWS share."""

import fake_aws
import pytest


@pytest.fixture
def aws(monkeypatch, tmp_path):
    """A small AWS in memory."""
    return fake_aws.put_in_place(monkeypatch, tmp_path)
