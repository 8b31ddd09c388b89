"""The text workload: reading texts, windows, evaluation and its options."""

import math
import sys

import pytest
import torch
from torch.nn import functional as F

from istbench.base.errors import UserError
from istbench.methods.base import materialise
from istbench.node.registry import build_method, build_workload
from istbench.studies.conformance import of_workloads
from istbench.workloads.contract import blank_model, checked_source
from istbench.workloads.text import Text, TextOptions
from istbench.workloads.text_data.build import TextFiles, find_text

TINY = {"width": 12, "layers": 2, "heads": 2, "context": 8}
WORDS = "the quick brown fox jumps over the lazy dog\n" * 30


def opened(cache, data=None, **options):
    """A tiny text workload with its data open, and the source of it."""
    workload = Text(TextOptions(**{**TINY, **options}))
    source = checked_source(workload, workload.prepare(data, cache, lambda *_: None))
    workload.open(source)
    return workload, source


def written(path, content=WORDS):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.fixture
def words(tmp_path):
    return opened(tmp_path / "cache", written(tmp_path / "words.txt"))[0]


def symbols_of(workload, text):
    """`text` as the numbers of its characters, by the sorted characters of the training text."""
    known = sorted(set(WORDS[: len(WORDS) * 9 // 10]))
    return torch.tensor([known.index(character) for character in text])


def test_training_windows_are_parts_of_the_first_nine_tenths_at_every_offset(words):
    text = symbols_of(words, WORDS[: len(WORDS) * 9 // 10])
    parts = {tuple(part.tolist()): place for place, part in enumerate(text.unfold(0, 9, 1))}
    assert words.train_size == (len(text) - 1) // 8
    offsets = set()
    for seed in range(40):
        batch, following = words.train_batch(torch.tensor([3, 0]), torch.Generator().manual_seed(seed))
        assert batch.shape == following.shape == (2, 8)
        assert torch.equal(batch[:, 1:], following[:, :-1])
        for row, last in zip(batch, following[:, -1:], strict=True):
            assert tuple(torch.cat([row, last]).tolist()) in parts
        offsets.add(tuple(batch[0].tolist()))
    assert offsets == {tuple(part.tolist()) for part in text[24:39].unfold(0, 8, 1)}


def test_the_share_of_the_test_text_is_an_option(tmp_path):
    path = written(tmp_path / "words.txt")
    found = [opened(tmp_path / "cache", path, test_percent=percent)[0]._splits for percent in (10, 5, 50)]
    wanted = [len(WORDS) * kept // 100 for kept in (90, 95, 50)]
    assert [len(splits["train"]) for splits in found] == wanted
    assert all(len(splits["train"]) + len(splits["test"]) == len(WORDS) for splits in found)


def test_windows_of_an_epoch_stay_in_the_training_text(words):
    for seed in range(20):
        indices = torch.arange(words.train_size)
        batch, _ = words.train_batch(indices, torch.Generator().manual_seed(seed))
        assert batch.shape == (words.train_size, 8)
        again, _ = words.train_batch(indices, torch.Generator().manual_seed(seed))
        assert torch.equal(batch, again)


@pytest.mark.parametrize("context", [1, 8, 131, 200])
def test_a_test_predicts_every_symbol_but_the_first_once(tmp_path, context):
    workload, source = opened(tmp_path / "cache", written(tmp_path / "words.txt"), context=context)
    text = symbols_of(workload, WORDS[len(WORDS) * 9 // 10 :])
    batches = list(workload.test_batches())
    assert torch.equal(torch.cat([symbols.flatten() for symbols, _ in batches]), text[:-1])
    assert torch.equal(torch.cat([following.flatten() for _, following in batches]), text[1:])
    assert sum(len(symbols) for symbols, _ in batches) == source.test
    assert all(symbols.shape == following.shape for symbols, following in batches)


def test_long_tests_come_in_several_batches(tmp_path):
    workload, source = opened(tmp_path / "cache", written(tmp_path / "long.txt", WORDS * 100), context=8)
    sizes = [len(symbols) for symbols, _ in workload.test_batches()]
    assert len(sizes) > 1
    assert sum(sizes) == source.test
    assert max(sizes) * 8 <= 8_192


@torch.no_grad()
def test_the_metric_is_the_mean_loss_of_a_symbol(words):
    model = blank_model(words)
    model = materialise(model, words, 0, torch.device("cpu")).eval()
    losses = []
    for symbols, following in words.test_batches():
        for row, after in zip(symbols, following, strict=True):
            scores = model(row[None])[0].log_softmax(-1)
            losses += [-float(scores[place, symbol]) for place, symbol in enumerate(after)]
    found = words.evaluate(model, words.test_batches())
    assert found["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert found["loss"] == pytest.approx(math.log(28), abs=0.1)
    assert (words.metric, words.lower_is_better, words.unit) == ("loss", True, "nats a character")
    assert math.isnan(words.evaluate(model, iter(()))["loss"])


def test_loss_is_cross_entropy_over_all_positions(words):
    model = words.build_model()
    batch = words.train_batch(torch.arange(3), torch.Generator().manual_seed(0))
    expected = F.cross_entropy(model(batch[0]).view(-1, 28), batch[1].reshape(-1))
    torch.testing.assert_close(words.loss(model, batch), expected)


def test_characters_are_sorted_and_one_symbol_stands_for_unknown_ones(tmp_path):
    known, unknown = "bca" * 60, "xyzé"
    workload, source = opened(tmp_path / "cache", written(tmp_path / "t.txt", known + "aab" * 5 + unknown))
    assert workload.build_model().embedding.num_embeddings == 4
    last, _ = list(workload.test_batches())[-1]
    text = torch.cat([following.flatten() for _, following in workload.test_batches()])
    assert text[-6:].tolist() == [0, 1, 3, 3, 3, 3]
    assert last.max() == 3
    assert "4 characters of the test text are not in the training text" in source.note
    batch, _ = workload.train_batch(torch.arange(workload.train_size), torch.Generator())
    assert batch.max() == 2


def test_bytes_need_no_text(tmp_path):
    workload, source = opened(
        tmp_path / "cache", written(tmp_path / "noise.bin", bytes(range(256)) * 5), symbols="bytes"
    )
    assert workload.build_model().embedding.num_embeddings == 256
    batch, _ = workload.train_batch(torch.arange(100), torch.Generator())
    assert batch.max() > 200
    assert (workload.unit, source.name) == ("nats a byte", "noise.bin, 1,280 bytes")


def test_text_files_of_a_directory_are_joined_in_the_order_of_their_names(tmp_path):
    folder = tmp_path / "books"
    folder.mkdir()
    for name, content in {
        "b.txt": "bb",
        "a.txt": "\ufeffaa\n",
        "c.txt": "cé",
        ".d.txt": "dd",
        "README.md": "ee",
    }.items():
        written(folder / name, content)
    whole = find_text(folder).read(decoded=True)
    assert whole.content.decode() == "aa\nbb\ncé"
    assert whole.codes(decoded=True).tolist() == [ord(character) for character in "aa\nbb\ncé"]
    assert whole.codes(decoded=False).tolist() == list("aa\nbb\ncé".encode())
    assert (whole.kind, whole.name) == ("text", "books")


def test_a_changed_text_is_prepared_again_and_an_equal_one_has_the_same_fingerprint(tmp_path):
    path = written(tmp_path / "words.txt")
    prints = [opened(tmp_path / "cache", path)[1].fingerprint]
    prints.append(opened(tmp_path / "cache", path, context=4)[1].fingerprint)
    written(path, WORDS + "more")
    prints.append(opened(tmp_path / "cache", path)[1].fingerprint)
    prints.append(opened(tmp_path / "cache", written(tmp_path / "other.txt"))[1].fingerprint)
    prints.append(opened(tmp_path / "cache", path, symbols="bytes")[1].fingerprint)
    assert prints[0] == prints[1] == prints[3]
    assert len(set(prints)) == 3


def test_without_data_the_text_is_pythons_own_help(tmp_path):
    workload, source = opened(tmp_path / "cache", context=64)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert source.kind == "python_help"
    assert source.name.startswith(f"the help topics of Python {version}, ")
    assert "no --data" in source.note
    assert source.train > 5_000
    assert workload.train_size == source.train
    planned = Text(TextOptions(**TINY))
    assert f"the help topics of Python {version}" in planned.expect(None, ())
    assert planned.build_model().embedding.num_embeddings == workload.build_model().embedding.num_embeddings


def test_a_model_planned_for_a_text_is_the_one_trained_on_it(tmp_path):
    path = written(tmp_path / "words.txt")
    planned = Text(TextOptions(**TINY))
    assert planned.expect(path, ()) == f"28 symbols, those of {path}"
    batch = planned.meta_batch(3)
    assert [part.shape for part in batch] == [(3, 8), (3, 8)]
    assert planned.build_model().embedding.num_embeddings == 28


@pytest.mark.parametrize(
    ("content", "options", "says"),
    [
        (b"", {}, "text.txt is empty; give a text file, or a directory of *.txt files"),
        (b"abc\xff", {}, "text.txt is not UTF-8 text (byte 3); convert it, or use its bytes"),
        (b"caf\xe9" * 100, {}, "text.txt is not UTF-8 text (byte 3)"),
        (b"ab", {}, "text.txt has 2 characters, too few for a training part of 90 %"),
        (b"abcdefgh" * 5, {"context": 64}, "text.txt has 36 characters to train on (90 % of it), not more "
         "than a context of 64; give more text, or use --workload-set context=18"),
        (b"abcdefgh" * 5, {"context": 64, "symbols": "bytes"}, "has 36 bytes to train on"),
        (None, {}, "no file"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("planning", [False, True])
def test_texts_that_cannot_be_trained_on_are_refused_in_a_line(tmp_path, content, options, says, planning):
    path = tmp_path / "text.txt"
    if content is not None:
        written(path, content)
    workload = Text(TextOptions(**{**TINY, **options}))
    if planning and "to train on" in says:  # a plan needs no whole context
        assert str(path) in workload.expect(path, ())
        return
    with pytest.raises(UserError) as caught:
        workload.expect(path, ()) if planning else workload.prepare(path, tmp_path / "cache", lambda *_: None)
    said = str(caught.value)
    assert str(path) in said
    assert says in said
    assert said.isprintable()


def test_a_directory_without_texts_is_refused(tmp_path):
    (tmp_path / "notes.md").write_text("text")
    with pytest.raises(UserError, match=r"has no \*.txt file; give a text file, or a directory of \*.txt files"):
        Text().prepare(tmp_path, tmp_path / "cache", lambda *_: None)


def test_a_text_in_a_directory_that_no_one_may_see_is_refused(locked):
    with pytest.raises(UserError, match=f"{locked}/a.txt: Permission denied; make it readable or remove it"):
        Text().expect(locked / "a.txt", ())


def test_too_many_characters_are_refused(tmp_path):
    every = "".join(map(chr, [*range(32, 0xD800), *range(0xE000, 0x14000)]))
    path = written(tmp_path / "all.txt", every)
    with pytest.raises(UserError, match="different characters, more than 65,535; use --workload-set symbols=bytes"):
        Text().prepare(path, tmp_path / "cache", lambda *_: None)


def test_a_width_that_the_heads_do_not_divide_is_refused():
    with pytest.raises(UserError, match="workload 'text': heads=5 must divide width=128"):
        build_workload("text", {"heads": 5})


@pytest.mark.parametrize("options", [{}, {"bias": True, "tied": False, "dropout": 0.1, "symbols": "bytes"}])
def test_the_text_workload_keeps_the_contract(tmp_path, options):
    workload, _ = opened(tmp_path, **options)
    for check in of_workloads.CHECKS:
        assert check(workload)


def test_a_row_of_letters_is_a_row_of_numbers(tmp_path):
    path = written(tmp_path / "letters.txt", "zyxwvutsrqponmlkjihgfedcba" * 20)
    batch, _ = opened(tmp_path / "cache", path)[0].train_batch(torch.arange(50), torch.Generator())
    assert (batch.diff() % 26 == 25).all()


@pytest.mark.parametrize("method", ["ddp", "ist", "local_sgd", "p3", "zero", "fsdp"])
def test_methods_start_from_nanogpts_settings(method):
    options = build_method(method, {}, workload=Text()).options
    assert (options.optimizer, options.betas, options.weight_decay_of) == ("adamw", (0.9, 0.99), "matrices")
    assert options.rate_at(100, 2000) == 1e-3
    assert options.rate_at(1999, 2000) == pytest.approx(1e-4, rel=1e-3)
    assert getattr(options, "clip", None) == (None if method == "p3" else 1.0)


def test_a_process_reads_a_text_once_to_count_its_symbols_and_to_prepare_it(tmp_path, monkeypatch):
    read, reads = TextFiles.read, []
    monkeypatch.setattr(TextFiles, "read", lambda self, **how: reads.append(self) or read(self, **how))
    path = written(tmp_path / "words.txt")
    for _ in range(2):
        workload = Text(TextOptions(**TINY))
        workload.expect(path, ())
        expected = workload.build_model().embedding.weight.shape
        workload.prepare(path, tmp_path / "cache", lambda *_: None)
        assert workload.build_model().embedding.weight.shape == expected
    assert len(reads) == 1
    written(path, WORDS + "~" + WORDS)
    Text(TextOptions(**TINY)).expect(path, ())
    assert len(reads) == 2
