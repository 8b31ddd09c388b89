"""What a run records of its data, and how it is said."""

import msgspec
import pytest

from istbench.base.options.data_source import DataSource

OLD = {
    "kind": "speech_commands",
    "path": "/cache",
    "fingerprint": "ab" * 32,
    "train": 3_900,
    "test": 885,
    "note": "",
}


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({}, "speech_commands, 4,785 samples"),
        ({"kind": "synthetic"}, "SYNTHETIC data, 4,785 samples"),
        ({"name": "speech_commands", "unit": "clips", "whole": 105_829},
         "speech_commands, 4,785 of 105,829 clips: a subset"),
        ({"name": "speech_commands", "unit": "clips", "whole": 4_785}, "speech_commands, all 4,785 clips"),
        ({"name": "speech_commands", "unit": "clips", "whole": 4_000}, "speech_commands, 4,785 clips"),
        ({"name": "words in mine", "unit": "clips"}, "words in mine, 4,785 clips"),
        ({"name": "SYNTHETIC speech", "unit": "clips", "kind": "synthetic"}, "SYNTHETIC speech, 4,785 clips"),
    ],
)  # fmt: skip
def test_how_much_of_which_data_was_seen_is_said_of_old_headers_too(fields: dict[str, object], seen: str) -> None:
    assert msgspec.convert({**OLD, **fields}, DataSource).seen == seen


@pytest.mark.parametrize("lie", [{"whole": -1}, {"whole": "all"}, {"name": "a" * 5_000}, {"unit": 3}])
def test_what_is_no_data_is_refused(lie: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**OLD, **lie}, DataSource)
