"""Any recorded words: which folders are words, and the model and the targets that follow from them."""

import io
import os

import numpy as np
import pytest
import soundfile
import torch

from istbench.base.errors import UserError
from istbench.workloads.speech import Speech, SpeechOptions
from istbench.workloads.speech_data import recordings
from istbench.workloads.speech_data.recordings import find_recordings
from istbench.workloads.speech_data.words import WORDS

NAMES = ("speaker7_nohash_0.wav", "speaker0_nohash_0.wav")  # to test on, to train on


def _wav():
    file = io.BytesIO()
    soundfile.write(file, np.sin(np.arange(900) / 7) / 2, 16_000, format="WAV")
    return file.getvalue()


WAV = _wav()


def speak(root, words, names=NAMES):
    """A folder a word in `root`, with a clip of each name."""
    for word in words:
        (root / word).mkdir(parents=True)
        for name in names:
            (root / word / name).write_bytes(WAV)
    return root


def test_the_words_are_the_folders_that_hold_clips(tmp_path):
    data = speak(tmp_path / "words", ["zwölf", "Two words", "_background_noise_", ".hidden", "eins"])
    (data / "empty").mkdir()
    (data / "pictures").mkdir()
    (data / "pictures" / "eins.png").write_bytes(b"no sound")
    for stray in ("LICENSE", "README.md", "testing_list.txt", "validation_list.txt", "eins.wav"):
        (data / stray).write_text("not read")
    found = find_recordings(data)
    assert found.words == ("Two words", "eins", "zwölf")
    assert [(path.parent.name, path.name) for path in found.paths] == [
        (word, name) for word in found.words for name in sorted(NAMES)
    ]
    assert found.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert found.is_test.tolist() == [False, True] * 3


@pytest.mark.parametrize("suffix", ["wav", "WAV", "flac", "ogg"])
def test_a_clip_is_known_by_how_its_name_ends(tmp_path, suffix):
    data = speak(tmp_path, ["a", "b"], [f"{speaker}_nohash_0.{suffix}" for speaker in ("speaker7", "speaker0")])
    assert find_recordings(data).words == ("a", "b")


def test_all_35_words_are_exactly_these(recordings):
    data = recordings()
    speak(data, ["aardvark", "zoo"])
    assert find_recordings(data).words == WORDS


def test_30_words_are_those_of_the_first_version(recordings):
    data = recordings()
    later = {"backward", "follow", "forward", "learn", "visual"}
    for word in later:
        for clip in (data / word).iterdir():
            clip.unlink()
        (data / word).rmdir()
    found = find_recordings(data)
    assert found.words == tuple(word for word in WORDS if word not in later)
    assert found.data_set == ("speech_commands_v0.01", "speech_commands v0.01", 64_721)


def test_words_are_speech_commands_by_their_speakers_too(recordings):
    data = recordings("mine\nown")
    assert find_recordings(data).data_set == ("speech_commands", "speech_commands", 105_829)
    (data / "go" / "1024.wav").write_bytes(WAV)
    assert find_recordings(data).data_set == ("words", "words in mine?own", None)


def test_two_levels_down_and_not_three(tmp_path):
    speak(tmp_path / "a" / "b" / "c", ["yes", "no"])
    assert find_recordings(tmp_path / "a").root == tmp_path / "a" / "b" / "c"
    with pytest.raises(UserError, match="it has no word folders"):
        find_recordings(tmp_path)


def test_one_word_is_nothing_to_tell_apart(tmp_path):
    with pytest.raises(UserError, match=f"^{tmp_path}: only one word folder, {tmp_path}/yes; expected two"):
        find_recordings(speak(tmp_path, ["yes"]))


def test_words_without_bounds_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(recordings, "MOST_WORDS", 3)
    assert len(find_recordings(speak(tmp_path, "abc")).words) == 3
    with pytest.raises(UserError, match=f"^{tmp_path}: more than 3 word folders; leave some out"):
        find_recordings(speak(tmp_path, "de"))


def test_a_word_that_cannot_be_written_down_is_refused_in_one_line(tmp_path):
    data = speak(tmp_path, ["yes", os.fsdecode(b"n\xff\n")])
    with pytest.raises(UserError, match="must be text in UTF-8; rename it") as caught:
        find_recordings(data)
    assert str(caught.value).encode().isascii()
    assert "\n" not in str(caught.value)


def test_a_word_of_two_lines_is_named_in_one(tmp_path, no_progress):
    data = speak(tmp_path / "data", ["two\nlines", "yes"])
    (data / "two\nlines" / NAMES[0]).write_bytes(b"broken")
    with pytest.raises(UserError, match=r"two\?lines/speaker7_nohash_0.wav: not a WAV file") as caught:
        Speech().prepare(data, tmp_path / "cache", no_progress)
    assert "\n" not in str(caught.value)


def test_the_model_has_as_many_outputs_as_there_are_words(tmp_path, no_progress):
    data = speak(tmp_path / "digits", ["one", "two", "drei"])
    speech, worker = (Speech(SpeechOptions(hidden=8)) for _ in range(2))
    assert speech.build_model().get_parameter("output.weight").shape == (35, 8)
    source = speech.prepare(data, tmp_path / "cache", no_progress)
    assert (source.kind, source.train, source.test) == ("words", 3, 3)
    assert source.seen == "words in digits, 6 clips"
    worker.open(source)
    for workload in (speech, worker):
        model = workload.build_model()
        assert model.get_parameter("output.weight").shape == (3, 8)
        assert workload.targets == ()
    batch = next(worker.test_batches())
    assert batch[1].tolist() == [0, 1, 2]
    assert torch.isfinite(worker.loss(model, batch))


def test_the_targets_stay_with_the_35_words(recordings, tmp_path, no_progress):
    speech = Speech()
    assert speech.targets == (0.63, 0.75, 0.77)
    source = speech.prepare(recordings(), tmp_path / "cache", no_progress)
    assert speech.targets == (0.63, 0.75, 0.77)
    assert source.kind == "speech_commands"
    speech.prepare(speak(tmp_path / "two", ["yes", "no"]), tmp_path / "cache", no_progress)
    assert speech.targets == ()
    speech.open(source)
    assert speech.targets == (0.63, 0.75, 0.77)
