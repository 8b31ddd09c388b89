"""Random models and inputs of these tests are the same in any order: some units are dead in one of 20 draws."""

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
