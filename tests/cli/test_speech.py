"""The main job on tiny data: every method on spoken words, by processes that share one feature file."""

import json
import wave

import pytest

from istbench.workloads.speech_data.words import WORDS

pytestmark = pytest.mark.processes

TINY = ["--workload", "speech", "--workload-set", "clips_per_word=6", "--workload-set", "hidden=32", "--nodes", "2"]


@pytest.mark.parametrize("method", ["ddp", "local_sgd", "ist"])
def test_every_method_trains_on_synthetic_words(tmp_path, istbench, method):
    given = [*TINY, "--method", method, "--batch-size", 16, "--steps", 60, "--out", tmp_path, "--json"]
    status, out, said = istbench("run", *given)
    assert status == 0, said
    result = json.loads(out)
    assert result["data"] == "synthetic"
    assert "eSpeak NG, not recordings" in said
    assert result["final"]["accuracy"] > 0.05  # guessing gives 0.03; a clip more or less is 0.03
    assert result["final"]["loss"] < 3.4  # and 3.56
    assert result["train_loss"] < 3.3


def test_broken_recordings_are_named(tmp_path, istbench):
    for word in WORDS:
        (tmp_path / "words" / word).mkdir(parents=True)
        for speaker in range(12):  # enough for some to fall to the test split
            with wave.open(str(tmp_path / "words" / word / f"ab{speaker}_nohash_0.wav"), "wb") as clip:
                clip.setnchannels(1)
                clip.setsampwidth(2)
                clip.setframerate(16_000)
                clip.writeframes(b"\0\1" * 16_000)
    (tmp_path / "words" / "yes" / "cd34_nohash_0.wav").write_bytes(b"RIFF and then nothing")
    given = [*TINY, "--method", "ddp", "--data", tmp_path / "words", "--out", tmp_path / "out"]
    status, _, said = istbench("run", *given)
    assert status == 2
    assert "cd34_nohash_0.wav" in said.splitlines()[-1]


def test_a_missing_data_directory_is_named(tmp_path, istbench):
    status, _, said = istbench("run", *TINY, "--method", "ddp", "--data", tmp_path / "none", "--out", tmp_path)
    assert status == 2
    assert str(tmp_path / "none") in said.splitlines()[-1]
