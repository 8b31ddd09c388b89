"""The synthetic corpus: the same bits every time, disjoint voices, and what happens without eSpeak NG."""

import multiprocessing
import subprocess
import sys

import numpy as np
import pytest

from istbench.base.errors import UserError
from istbench.launch.processes import local
from istbench.workloads.speech import Speech, SpeechOptions
from istbench.workloads.speech_data import build, espeak, synthetic
from istbench.workloads.speech_data.synthetic import Corpus
from istbench.workloads.speech_data.words import WORDS


def rendered():
    """The clips of a block, from a process of its own: int16 [n, 16000]."""
    command = [sys.executable, "-m", synthetic.__name__, "0", "4", "0"]
    output = subprocess.run(command, check=True, capture_output=True).stdout
    return np.frombuffer(output, np.int16).reshape(-1, 16_000)


@pytest.mark.processes
def test_one_seed_is_one_corpus_bit_for_bit(tmp_path, no_progress):
    sources = [
        build.prepare_synthetic(Corpus(clips_per_word=4, seed=seed), tmp_path / name, no_progress)
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    first, same, other = (source.fingerprint for source in sources)
    assert first == same
    assert first != other
    assert (sources[0].kind, sources[0].train, sources[0].test) == ("synthetic", 105, 35)
    assert "synthetic" in sources[0].note
    assert sources[0].seen == f"SYNTHETIC speech, {sources[0].train + sources[0].test} clips"


SMALL_BLOCKS = f"""#!{sys.executable}
import sys
from istbench.workloads.speech_data import synthetic
synthetic.BLOCK_CLIPS = 40
sys.argv = sys.argv[3:]  # without the options of `python -P -m MODULE`
synthetic.main()
"""


@pytest.fixture
def small_blocks(tmp_path, monkeypatch):
    """Blocks of 40 clips, of which 15 are read at a time."""
    renderer = tmp_path / "renderer"
    renderer.write_text(SMALL_BLOCKS)
    renderer.chmod(0o755)
    monkeypatch.setattr(build.sys, "executable", str(renderer))
    monkeypatch.setattr(synthetic, "BLOCK_CLIPS", 40)
    monkeypatch.setattr(build, "CHUNK_CLIPS", 15)


@pytest.mark.processes
def test_the_number_of_cores_makes_no_difference(tmp_path, no_progress, monkeypatch, small_blocks):
    two_blocks = Corpus(clips_per_word=2)
    assert two_blocks.blocks == 2
    fingerprints = set()
    for cores in (1, 3):
        monkeypatch.setattr(build, "cores", lambda cores=cores: cores)
        fingerprints.add(build.prepare_synthetic(two_blocks, tmp_path / str(cores), no_progress).fingerprint)
    assert len(fingerprints) == 1


@pytest.mark.processes
def test_a_block_is_the_same_in_every_process():
    clips = rendered()
    assert np.array_equal(clips, rendered())
    assert clips.shape == (140, 16_000)
    peaks = np.abs(clips.astype(int)).max(1)
    assert peaks.min() > 0.09 * 32_767
    assert peaks.max() < 0.91 * 32_767


def test_voices_and_clips_of_the_splits():
    corpus = Corpus(clips_per_word=20)
    train, test = map(set, corpus.variants)
    assert not train & test
    assert train | test == set(espeak.voice_variants())
    for label in range(len(WORDS)):
        assert corpus.is_test[corpus.labels == label].sum() == 4
        assert (~corpus.is_test[corpus.labels == label]).sum() == 16


def test_the_smallest_corpus_has_both_splits():
    corpus = Corpus(clips_per_word=2)
    assert corpus.is_test.sum() == (~corpus.is_test).sum() == 35


@pytest.mark.processes
def test_every_word_fits_and_is_heard():
    script = """
from istbench.workloads.speech_data.espeak import ACCENTS, SAMPLE_RATE, Synthesizer
from istbench.workloads.speech_data.words import WORDS
with Synthesizer() as synthesizer:
    for accent in ACCENTS:
        for word in WORDS:
            spoken = synthesizer.say(word, voice=accent + "+m3", rate=150, pitch=50, pitch_range=50)
            assert 0.1 * SAMPLE_RATE < len(spoken) <= SAMPLE_RATE, (accent, word, len(spoken))
            assert abs(spoken).max() > 2000, (accent, word)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_an_unknown_voice_is_named():
    with (
        espeak.Synthesizer() as synthesizer,
        pytest.raises(UserError, match=r"eSpeak NG has no voice 'xx\+m3'"),
    ):
        synthesizer.say("yes", voice="xx+m3", rate=200, pitch=50, pitch_range=50)


def test_without_espeak_the_way_out_is_named(tmp_path, no_progress, monkeypatch):
    monkeypatch.setattr(espeak.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install espeakng-loader.*--data DIR"):
        Speech(SpeechOptions(clips_per_word=2)).prepare(None, tmp_path, no_progress)


@pytest.mark.processes
def test_a_renderer_that_fails_is_reported(tmp_path, no_progress, monkeypatch):
    monkeypatch.setattr(build.sys, "executable", "false")
    with pytest.raises(UserError, match="rendering the synthetic speech failed: exit status 1"):
        Speech(SpeechOptions(clips_per_word=2)).prepare(None, tmp_path, no_progress)


@pytest.mark.processes
def test_a_reader_that_goes_away_stops_the_renderer():
    command = [sys.executable, "-m", synthetic.__name__, "0", "8", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1000)
    process.stdout.close()
    assert process.wait(timeout=30) == 1
    assert process.stderr.read() == b""
    process.stderr.close()


def imports_none(module, *heavy):
    """A script that fails where importing `module` imports one of those."""
    return f"import sys, {module}; assert not {set(heavy)} & set(sys.modules)"


@pytest.mark.processes
def test_renderers_start_without_heavy_imports():
    script = imports_none(synthetic.__name__, "torch", "soundfile")
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.processes
def test_workers_start_without_heavy_imports():
    script = imports_none(Speech.__module__, "torchaudio", "soundfile", "espeakng_loader")
    local.preload()
    worker = multiprocessing.get_context("forkserver").Process(target=exec, args=(script,))
    worker.start()
    worker.join()
    assert worker.exitcode == 0
