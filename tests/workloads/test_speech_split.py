"""The split of recorded clips: by speaker as the data set's own rule has it, else by file name, which is said."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from istbench.base.errors import UserError
from istbench.workloads.speech import Speech
from istbench.workloads.speech_data.recordings import BY_NAME_NOTE, split_clips

ROOT = Path("/data")
TEST, TRAIN = "speaker7", "speaker0"  # at 12 and 94 %


def split(words):
    """Whether each file is for testing, of file names by word; and the note."""
    paths = [ROOT / f"word{label}" / name for label, names in enumerate(words) for name in names]
    labels = np.repeat(np.arange(len(words)), [len(names) for names in words])
    is_test, note = split_clips(paths, labels, [f"word{label}" for label in range(len(words))], ROOT)
    return [is_test[labels == label].tolist() for label in range(len(words))], note


def test_all_clips_of_a_speaker_are_on_the_side_of_the_official_rule():
    names = [f"{number:08x}_nohash_{take}.wav" for number in range(200) for take in (0, 7)]
    (found, _), note = split([names, names])
    hashes = [int(hashlib.sha1(name.split("_nohash_")[0].encode()).hexdigest(), 16) for name in names]
    assert found == [number % 134_217_728 * 100 / 134_217_727 < 20 for number in hashes]
    assert found[::2] == found[1::2]
    assert 20 < sum(found[::2]) < 60
    assert note == ""


def test_speakers_of_the_official_lists():
    # The first is of testing_list.txt, the second of validation_list.txt, the third of neither.
    found, _ = split([["bb05582b_nohash_3.wav", "ad63d93c_nohash_4.wav", "0a7c2a8d_nohash_0.wav"]])
    assert found == [[True, True, False]]


def test_a_name_without_a_speaker_counts_whole():
    found, note = split([["2.wav", "3.wav"]])
    assert (found, note) == ([[True, False]], "")


@pytest.mark.parametrize(
    "second",
    [[f"{TEST}_nohash_{take}.wav" for take in range(40)], [f"{TRAIN}_nohash_{take}.wav" for take in range(40)]],
    ids=["none to train on", "none to test on"],
)
def test_where_speakers_leave_a_word_without_a_side_all_words_are_split_by_name(second):
    first = [f"{speaker}_nohash_{take}.wav" for take in range(20) for speaker in (TEST, TRAIN)]
    found, note = split([first, second])
    assert note == BY_NAME_NOTE
    for names, sides in zip((first, second), found, strict=True):
        assert 0 < sum(sides) < len(names) / 2
        assert {side for name, side in zip(names, sides, strict=True) if name[:8] == names[0][:8]} == {False, True}


def test_a_word_of_which_nothing_is_left_to_train_on_is_named():
    with pytest.raises(UserError, match=r"^/data: split by file name, word1 has no training clips; record more"):
        split([["0.wav", "1.wav", "2.wav"], ["2.wav", "9.wav"]])


def test_nothing_to_test_on_is_said():
    with pytest.raises(UserError, match=r"^/data: split by file name, there are no test clips; record more"):
        split([["0.wav", "1.wav"], ["0.wav"]])


def test_a_word_without_test_clips_is_kept_where_another_has_some():
    found, note = split([["0.wav", "2.wav"], ["0.wav"]])
    assert (found, note) == ([[False, True], [False]], BY_NAME_NOTE)


def test_the_note_comes_with_the_data_and_a_split_of_another_rule_is_other_data(recordings, tmp_path, no_progress):
    data = recordings()
    before = Speech().prepare(data, tmp_path / "cache", no_progress)
    assert before.note == ""
    for clip in (data / "go").iterdir():
        clip.rename(clip.with_name(f"{TRAIN}_nohash_{clip.name[7]}.wav"))
    after = Speech().prepare(data, tmp_path / "cache", no_progress)
    assert after.note == BY_NAME_NOTE
    assert after.path != before.path
