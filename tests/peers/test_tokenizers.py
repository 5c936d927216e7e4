"""Tokens for the same text: ours, those of Python's sentencepiece, and those of Hugging Face's tokenizers."""
import json
import random

import pytest
import sentencepiece
import tokenizers

WORDS = ("the king of France and his citizens shall never speak again; I'll say it's 1789, they've don't we're (or 42,000) "
         "naïve café Привет мир 日本語 テスト 😀 end.").split(" ")

NASTY = ["", " ", "\n", "a", "Hello world", "  two  spaces  ", "tabs\tand\nlines\r\n\r\n", "it's I'LL we've 'tis", "1234567 3.14½",
         "é e\u0301 \u00a0 \u2003 \u3000x\u0085y\u180ez", "👩‍👩‍👧 日本語テキスト", "<|endoftext|> </s> <unk>", "\x01\x1b[0m\x7f",
         "a" * 3000, "The king\n\nof   France\t!\n"]


def text(lines, seed):
    draw = random.Random(seed)
    return "".join(" ".join(draw.choices(WORDS, k=12)) + "\n" for _ in range(lines))


@pytest.fixture(scope="module")
def corpus(bitloom):
    path = bitloom.folder / "corpus.txt"
    path.write_text(text(400, 1), encoding="utf-8")
    return path


def ids(bitloom, spec, sample):
    line, = bitloom.lines_of_json("tokenizer", "info", spec, "--json", "--text", sample)
    assert line["decoded"] == sample
    return line["tokens"]


def test_sentencepiece_gives_the_same_tokens(bitloom, corpus):
    path = bitloom.folder / "trained"
    done = bitloom("tokenizer", "train", "--input", corpus, "--vocabulary", 420, "--out", path)
    assert done.returncode == 0, done.stderr
    kind, rest = path.read_bytes().split(b"\n", 1)
    assert kind.startswith(b"bitloom tokenizer 1 sentencepiece ")
    theirs = sentencepiece.SentencePieceProcessor(model_proto=rest)
    assert theirs.get_piece_size() == 420 and theirs.eos_id() == 1
    (bitloom.folder / "their.model").write_bytes(rest)
    for sample in NASTY + [text(5, 2)]:
        assert ids(bitloom, path, sample) == theirs.encode(sample), sample
        assert ids(bitloom, "their.model", sample) == theirs.encode(sample), sample
        assert theirs.decode(theirs.encode(sample)) == sample


def test_models_of_others_are_read(bitloom, corpus):
    """Trained by Python with its own defaults: a unigram model, normalised, with a space in front."""
    for kind in ["unigram", "bpe"]:
        prefix = bitloom.folder / f"other-{kind}"
        sentencepiece.SentencePieceTrainer.train(input=str(corpus), model_prefix=str(prefix), vocab_size=80, model_type=kind,
                                                 minloglevel=4)
        theirs = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
        for sample in ["the king of France", " Citizens  shall never", "don't speak again;"]:
            line, = bitloom.lines_of_json("tokenizer", "info", f"{prefix}.model", "--json", "--text", sample)
            assert line["tokens"] == theirs.encode(sample), (kind, sample)
            assert line["decoded"] == theirs.decode(theirs.encode(sample)), (kind, sample)


def test_gpt2_gives_the_same_tokens(bitloom, corpus):
    theirs = tokenizers.ByteLevelBPETokenizer()
    theirs.train(files=[str(corpus)], vocab_size=500, min_frequency=2, special_tokens=["<|endoftext|>"])
    folder = bitloom.folder / "gpt2"
    folder.mkdir()
    theirs.save_model(str(folder))
    # Without the special token, which it would look for in text.
    plain = tokenizers.ByteLevelBPETokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
    assert json.loads((folder / "vocab.json").read_text(encoding="utf-8"))["<|endoftext|>"] == 0
    for sample in NASTY + [text(5, seed) for seed in range(2, 6)]:
        assert ids(bitloom, folder, sample) == plain.encode(sample).ids, sample
