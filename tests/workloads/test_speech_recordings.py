"""Recorded words: reading the official layout, the split by speaker, and what is said about bad input."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from istbench.base.errors import UserError
from istbench.workloads.prepared import downloaded
from istbench.workloads.speech import Speech
from istbench.workloads.speech_data.clip import read_clip
from istbench.workloads.speech_data.features import extractor
from istbench.workloads.speech_data.recordings import BY_NAME_NOTE, find_recordings, split_clips
from istbench.workloads.speech_data.words import WORDS

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
    assert (found, note) == ([[False, True], [False]], "no test clips of word1")


def test_the_note_comes_with_the_data_and_a_split_of_another_rule_is_other_data(recordings, tmp_path, no_progress):
    data = recordings()
    before = Speech().prepare(data, tmp_path / "cache", no_progress)
    assert before.note == ""
    for clip in (data / "go").iterdir():
        clip.rename(clip.with_name(f"{TRAIN}_nohash_{clip.name[7]}.wav"))
    after = Speech().prepare(data, tmp_path / "cache", no_progress)
    assert after.note == f"{BY_NAME_NOTE}; no test clips of go"
    assert after.path != before.path


def test_words_in_the_official_layout(recordings, tmp_path, no_progress):
    data = recordings()
    for extra in ("_background_noise_", "_silence_", "marvelous"):
        (data / extra).mkdir()
        (data / extra / "noise.wav").write_bytes(b"not read")
    (data / "bed" / ".DS_Store").write_bytes(b"not read")
    speech = Speech()
    source = speech.prepare(data, tmp_path / "cache", no_progress)
    assert (source.kind, source.train, source.test, source.note) == ("speech_commands", 35, 35, "")
    assert source.seen == "speech_commands, 70 of 105,829 clips: a subset"
    speech.open(source)
    assert speech.train_size == 35
    features, labels = speech.train_batch(torch.tensor([34, 1]), torch.Generator())
    assert labels.tolist() == [34, 1]
    clips = torch.from_numpy(np.stack([read_clip(data / w / "speaker0_nohash_0.wav").samples for w in WORDS]))
    expected = extractor()(clips)
    torch.testing.assert_close(features, (expected - expected.mean(0))[[34, 1]], atol=1e-3, rtol=0)
    batches = list(speech.test_batches())
    assert [len(labels) for _, labels in batches] == [35]
    assert torch.equal(batches[0][1], torch.arange(35))


@pytest.mark.parametrize("inside", ["speech_commands_v0.02", "SpeechCommands/speech_commands_v0.02", "any"])
def test_word_folders_up_to_two_levels_down(recordings, tmp_path, inside):
    recordings(f"outer/{inside}")
    found = find_recordings(tmp_path / "outer")
    assert len(found.paths) == 70


def test_no_speaker_is_in_both_splits(recordings):
    data = recordings()
    for number in range(40):
        soundfile.write(data / "go" / f"{number:08x}_nohash_0.wav", np.zeros(100), 16_000)
        soundfile.write(data / "no" / f"{number:08x}_nohash_3.wav", np.zeros(100), 16_000)
    found = find_recordings(data)
    speakers = [path.name.split("_nohash_")[0] for path in found.paths]
    test = {speaker for speaker, is_test in zip(speakers, found.is_test, strict=True) if is_test}
    train = {speaker for speaker, is_test in zip(speakers, found.is_test, strict=True) if not is_test}
    assert not test & train
    assert 2 <= len(test) < len(train)


def test_clips_are_padded_and_cut_to_a_second(tmp_path):
    short, long = tmp_path / "short.wav", tmp_path / "long.wav"
    soundfile.write(short, np.full(10, 0.5), 16_000)
    soundfile.write(long, np.full(20_000, 0.5), 16_000)
    assert read_clip(short).samples.tolist() == [0.5] * 10 + [0.0] * 15_990
    assert read_clip(long).samples.tolist() == [0.5] * 16_000


def _truncate(path):
    path.write_bytes(path.read_bytes()[:9000])


def _make_folder(path):
    path.unlink()
    path.mkdir()


def _dangle(path):
    path.unlink()
    path.symlink_to(path.with_name("gone.wav"))


BROKEN = {
    "truncated": (_truncate, "truncated: its header promises"),
    "text": (lambda path: path.write_text("hello, this is no sound"), "not a WAV file"),
    "empty": (lambda path: path.write_bytes(b""), "not a WAV file"),
    "header only": (lambda path: path.write_bytes(b"RIFF\x04\0\0\0WAVE"), "cannot be read as WAV"),
    "no samples": (lambda path: soundfile.write(path, np.zeros(0), 16_000), "no samples"),
    "rate": (
        lambda path: soundfile.write(path, np.zeros(800), 999),
        "999 samples a second, expected 1,000 to 1,000,000",
    ),
    "rate of radio": (
        lambda path: soundfile.write(path, np.zeros(800), 1_000_001),
        "1000001 samples a second, expected 1,000 to 1,000,000",
    ),
    "channels": (
        lambda path: soundfile.write(path, np.zeros((800, 65)), 16_000),
        "65 channels, expected at most 64",
    ),
    "dangling link": (_dangle, "No such file or directory"),
    "folder": (_make_folder, "cannot be read as WAV"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_file_is_named(recordings, tmp_path, no_progress, fault):
    data = recordings()
    file = data / "house" / "speaker0_nohash_0.wav"
    damage, says = BROKEN[fault]
    damage(file)
    with pytest.raises(UserError) as caught:
        Speech().prepare(data, tmp_path / "cache", no_progress)
    message = str(caught.value)
    assert message.startswith(f"{file}: ")
    assert says in message
    assert "\n" not in message
    assert not list((tmp_path / "cache" / "speech").glob("*partial"))


def test_a_directory_in_another_layout_is_refused(recordings, tmp_path):
    data = recordings()
    cases = [(tmp_path / "nowhere", "no such directory")]
    cases.append((data / "bed" / "speaker0_nohash_0.wav", "not a directory"))
    empty = tmp_path / "empty"
    empty.mkdir()
    cases.append((empty, "empty"))
    pictures = tmp_path / "pictures"
    (pictures / "cats").mkdir(parents=True)
    (pictures / "dogs").mkdir()
    (pictures / "dogs" / "rex.jpg").write_bytes(b"no sound")
    cases.append((pictures, "it has no word folders"))
    for path, says in cases:
        with pytest.raises(UserError, match=f"{path}: {says}; expected two or more folders of clips, one per word"):
            find_recordings(path)


def test_an_empty_folder_among_the_35_words_is_refused(recordings):
    data = recordings()
    for clip in (data / "zero").iterdir():
        clip.unlink()
    with pytest.raises(UserError, match="zero: no clip; expected recordings such as"):
        find_recordings(data)
    (data / "zero").rmdir()
    assert find_recordings(data).words == WORDS[:-1]


def test_files_beside_the_clips_are_left_out_and_named_in_a_note(recordings):
    data = recordings()
    (data / "bed" / "notes.txt").write_text("recorded in the kitchen")
    (data / "go" / "LICENSE").write_text("CC BY 4.0")
    found = find_recordings(data)
    assert len(found.paths) == 70
    assert found.note == "files beside the clips are left out: notes.txt, LICENSE"


def test_a_recording_of_another_format_is_named(tmp_path):
    for word in ("yes", "no"):  # a word without any WAV file is a word too
        (tmp_path / word).mkdir()
        soundfile.write(tmp_path / "yes" / "0.wav", np.zeros(100), 16_000)
    (tmp_path / "no" / "0.MP3").write_bytes(b"ID3")
    with pytest.raises(UserError, match=r"no/0.MP3: only WAV, FLAC and Ogg are read; convert it or remove it"):
        find_recordings(tmp_path)


def test_two_corpora_in_one_directory_are_refused(recordings, tmp_path):
    recordings("both/first")
    recordings("both/second")
    with pytest.raises(UserError, match=r"word folders in .*first, .*second; give one of these"):
        find_recordings(tmp_path / "both")


def test_downloaded_recordings_are_used(recordings, tmp_path, no_progress, monkeypatch):
    def fake(root, download):
        recordings(f"cache/speech/{root.name}/SpeechCommands/speech_commands_v0.02")
        (root / "speech_commands_v0.02.tar.gz").write_bytes(b"archive")

    monkeypatch.setattr("torchaudio.datasets.SPEECHCOMMANDS", fake)
    cache = tmp_path / "cache"
    source = Speech().fetch("download", cache, no_progress)
    assert source.kind == "speech_commands"
    assert Speech().prepare(None, cache, no_progress) == source
    assert Speech().fetch("download", cache, no_progress) == source
    assert not list(cache.rglob("*.tar.gz"))


def test_a_refused_download_is_one_line(tmp_path, no_progress, monkeypatch):
    def refuse(root, download):
        raise OSError("<urlopen error [Errno 111] Connection refused>\nsecond line")

    monkeypatch.setattr("torchaudio.datasets.SPEECHCOMMANDS", refuse)
    with pytest.raises(UserError, match=r"could not be downloaded.*Connection refused.*--data DIR") as caught:
        Speech().fetch("download", tmp_path, no_progress)
    assert "\n" not in str(caught.value)
    assert downloaded(tmp_path / "speech") is None
