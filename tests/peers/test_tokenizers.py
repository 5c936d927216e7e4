"""Tokens for the same text: ours, those of Python's sentencepiece, and those of Hugging Face's tokenizers."""
import json
import random

import numpy as np
import pytest
import sentencepiece
import tokenizers
from safetensors.numpy import save_file

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


# Texts without special tokens, which Hugging Face's tokenizers find in texts, and without U+2581, which is a space to them.
PLAIN = [sample.replace("<|endoftext|> </s> <unk>", "<|end| <s") for sample in NASTY] + [text(5, seed) for seed in range(2, 6)]


def exported(bitloom, name, tokenizer, size):
    """The folder of a GPT with that tokenizer, for transformers."""
    vocabulary = {"vocab_size": size, "n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2}
    folder = bitloom.folder / f"{name}-net"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(vocabulary))
    shapes = {"wte.weight": (size, 8), "wpe.weight": (16, 8), "ln_f.weight": (8,), "ln_f.bias": (8,), "h.0.ln_1.weight": (8,),
              "h.0.ln_1.bias": (8,), "h.0.attn.c_attn.weight": (8, 24), "h.0.attn.c_attn.bias": (24,),
              "h.0.attn.c_proj.weight": (8, 8), "h.0.attn.c_proj.bias": (8,), "h.0.ln_2.weight": (8,), "h.0.ln_2.bias": (8,),
              "h.0.mlp.c_fc.weight": (8, 32), "h.0.mlp.c_fc.bias": (32,), "h.0.mlp.c_proj.weight": (32, 8),
              "h.0.mlp.c_proj.bias": (8,)}
    save_file({key: np.zeros(shape, np.float32) for key, shape in shapes.items()}, folder / "model.safetensors")
    for step in [("import", "gpt", folder, "--out", f"{name}.safetensors", "--tokenizer", tokenizer),
                 ("export", f"{name}.safetensors", "--out", f"{name}-exported")]:
        done = bitloom(*step)
        assert done.returncode == 0, done.stderr
    return bitloom.folder / f"{name}-exported"


@pytest.fixture(scope="module")
def folders(bitloom, corpus):
    """Exported folders with their tokenizers here, by kind."""
    done = bitloom("tokenizer", "train", "--input", corpus, "--vocabulary", 430, "--out", "pieces")
    assert done.returncode == 0, done.stderr
    theirs = tokenizers.ByteLevelBPETokenizer()
    theirs.train(files=[str(corpus)], vocab_size=500, min_frequency=2, special_tokens=["<|endoftext|>"])
    (bitloom.folder / "merges").mkdir()
    theirs.save_model(str(bitloom.folder / "merges"))
    sizes = {"bytes": 257, "pieces": 430, "merges": theirs.get_vocab_size()}
    for kind in ["unigram", "bpe"]:  # of others: normalised, with a space in front, unknown characters
        sentencepiece.SentencePieceTrainer.train(input=str(corpus), model_prefix=str(bitloom.folder / f"their-{kind}"),
                                                 vocab_size=80, model_type=kind, minloglevel=4)
        sizes[f"their-{kind}.model"] = 80
    return {kind: (exported(bitloom, kind.removesuffix(".model"), kind, size), kind) for kind, size in sizes.items()}


KINDS = ["bytes", "pieces", "merges", "their-unigram.model", "their-bpe.model"]


def samples(kind):
    if not kind.startswith("their"):
        return PLAIN
    return ["the king of France", " Citizens  shall never ", "don't speak again;", "naïve  café ﬁne ①２ tabs\tand\nlines", "日本語 Ω x"]


def our_ids(bitloom, spec, sample):
    line, = bitloom.lines_of_json("tokenizer", "info", spec, "--json", "--text", sample)
    return line["tokens"], line["decoded"]


@pytest.mark.parametrize("kind", KINDS)
def test_tokenizer_json_gives_the_same_tokens(bitloom, folders, kind):
    folder, spec = folders[kind]
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for sample in samples(kind):
        tokens, decoded = our_ids(bitloom, spec, sample)
        assert theirs.encode(sample).ids == tokens, sample
        if "⁇" not in decoded:  # how sentencepiece shows what it has no token for
            assert theirs.decode(tokens) == decoded, sample
    end = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))["eos_token"]
    assert theirs.encode(f"the{end}").ids[-1] == json.loads((folder / "config.json").read_text())["eos_token_id"]


def test_a_model_that_tokenizer_json_cannot_say_is_there_as_it_is(bitloom, corpus):
    sentencepiece.SentencePieceTrainer.train(input=str(corpus), model_prefix=str(bitloom.folder / "marked"), vocab_size=80,
                                             user_defined_symbols=["<mark>"], minloglevel=4)
    folder = exported(bitloom, "marked", "marked.model", 80)
    assert (folder / "tokenizer.model").read_bytes() == (bitloom.folder / "marked.model").read_bytes()
    assert not (folder / "tokenizer.json").exists()


@pytest.mark.torch
@pytest.mark.parametrize("kind", KINDS)
def test_transformers_load_the_tokenizer_of_a_folder(bitloom, folders, kind):
    import transformers

    folder, spec = folders[kind]
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    assert len(theirs) == config["vocab_size"] and theirs.eos_token_id == config["eos_token_id"]
    assert theirs.model_max_length == 16
    for sample in samples(kind):
        tokens, decoded = our_ids(bitloom, spec, sample)
        assert theirs(sample).input_ids == tokens, sample
        if "⁇" not in decoded:
            assert theirs.decode(tokens) == decoded, sample
