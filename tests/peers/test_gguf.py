"""GGUF files of GPTs: the package gguf reads every key and tensor, and transformers and llama.cpp compute from them what Bitloom
computes."""
import json

import gguf
import numpy as np
import pytest
import sentencepiece
from gpts import CONTEXT, HEADS, LAYERS, PROMPT, TEXT, TRAINED, WIDTH, model, our_logits, our_text, our_tokens, weights

MATRICES = {"attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
NORMS = {"ln_1": "attn_norm", "ln_2": "ffn_norm"}
TYPES = {"f32": gguf.GGMLQuantizationType.F32, "f16": gguf.GGMLQuantizationType.F16, "q8_0": gguf.GGMLQuantizationType.Q8_0}


def exported(bitloom, source, *options, name="exported.gguf"):
    done = bitloom("export", source, "--to", "gguf", "--out", name, *options)
    assert done.returncode == 0, done.stderr
    return bitloom.folder / name


def expected_tensors(values):
    """Under the names of GGUF, as (outputs, inputs)."""
    tensors = {"token_embd.weight": values["wte.weight"], "position_embd.weight": values["wpe.weight"],
               "output_norm.weight": values["ln_f.weight"], "output_norm.bias": values["ln_f.bias"]}
    for layer in range(LAYERS):
        for theirs, name in {**MATRICES, **NORMS}.items():
            for part in ["weight", "bias"]:
                value = values[f"h.{layer}.{theirs}.{part}"]
                tensors[f"blk.{layer}.{name}.{part}"] = value.T if value.ndim == 2 else value
    return tensors


@pytest.mark.parametrize("kind", list(TYPES))
@pytest.mark.parametrize("width", [64, 24])
def test_tensors_are_those_that_the_package_makes(bitloom, kind, width):
    """Bit for bit. Rows of 24 numbers are no whole blocks of q8_0, rows of 96 are."""
    path = exported(bitloom, model(bitloom, f"wide-{width}", "bytes", 257, width), "--type", kind)
    reader = gguf.GGUFReader(path)
    assert reader.get_field("general.file_type").contents() == {"f32": 0, "f16": 1, "q8_0": 7}[kind]
    expected = expected_tensors(weights(257, width))
    found = {tensor.name: tensor for tensor in reader.tensors}
    assert len(found) == len(reader.tensors) and set(found) == set(expected)
    seen = set()
    for name, value in expected.items():
        matrix = value.ndim == 2 and name != "position_embd.weight"
        wanted = TYPES[kind if matrix else "f32"]
        if wanted == gguf.GGMLQuantizationType.Q8_0 and value.shape[1] % 32:
            wanted = gguf.GGMLQuantizationType.F16
        tensor = found[name]
        seen.add(tensor.tensor_type)
        assert tensor.tensor_type == wanted, name
        assert list(reversed(tensor.shape.tolist())) == list(value.shape), name
        assert tensor.data_offset % 32 == 0
        assert np.array_equal(tensor.data.view(np.uint8).reshape(-1),
                              gguf.quants.quantize(np.ascontiguousarray(value), wanted).view(np.uint8).reshape(-1)), name
    assert TYPES[kind] in seen


def contents(path):
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items() if not name.startswith("GGUF.")}


def test_keys_of_a_model_of_bytes(bitloom, byte_model):
    keys = contents(exported(bitloom, byte_model))
    tokens = keys.pop("tokenizer.ggml.tokens")
    spelling = {character: byte for byte, character in byte_spelling().items()}
    assert [spelling[token] for token in tokens[:256]] == list(range(256)) and tokens[256:] == ["<|endoftext|>"]
    assert keys.pop("tokenizer.ggml.token_type") == [1] * 256 + [3]
    assert abs(keys.pop("gpt2.attention.layer_norm_epsilon") - 1e-5) < 1e-12
    assert keys == {"general.architecture": "gpt2", "general.name": "of-bytes", "general.file_type": 0,
                    "general.quantization_version": 2, "gpt2.context_length": CONTEXT, "gpt2.embedding_length": WIDTH,
                    "gpt2.feed_forward_length": 4 * WIDTH, "gpt2.block_count": LAYERS, "gpt2.attention.head_count": HEADS,
                    "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.merges": [],
                    "tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False,
                    "tokenizer.ggml.add_eos_token": False, "tokenizer.ggml.bos_token_id": 256,
                    "tokenizer.ggml.eos_token_id": 256}


def byte_spelling():
    """Byte -> character, as encoder.py of openai/gpt-2 describes it."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{byte: chr(byte) for byte in printable}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def test_a_gpt2_tokenizer_goes_along(bitloom, gpt2_model, gpt2_tokenizer):
    keys = contents(exported(bitloom, gpt2_model))
    vocabulary = json.loads((gpt2_tokenizer / "vocab.json").read_text("utf-8"))
    assert keys["tokenizer.ggml.model"] == "gpt2" and keys["tokenizer.ggml.pre"] == "gpt-2"
    assert keys["tokenizer.ggml.tokens"] == sorted(vocabulary, key=vocabulary.get)
    assert keys["tokenizer.ggml.merges"] == (gpt2_tokenizer / "merges.txt").read_text("utf-8").splitlines()[1:]
    assert keys["tokenizer.ggml.token_type"] == [3] + [1] * (len(vocabulary) - 1)
    assert keys["tokenizer.ggml.eos_token_id"] == vocabulary["<|endoftext|>"] == 0


def test_a_sentencepiece_tokenizer_goes_along(bitloom, sentencepiece_model):
    keys = contents(exported(bitloom, sentencepiece_model))
    theirs = sentencepiece.SentencePieceProcessor(
        model_proto=(bitloom.folder / "gpt-pieces").read_bytes().split(b"\n", 1)[1])
    numbers = range(theirs.get_piece_size())
    assert keys["tokenizer.ggml.model"] == "llama"
    assert keys["tokenizer.ggml.tokens"] == [theirs.id_to_piece(i) for i in numbers]
    assert keys["tokenizer.ggml.scores"] == [theirs.get_score(i) for i in numbers]
    assert keys["tokenizer.ggml.token_type"] == [2 if theirs.is_unknown(i) else 3 if theirs.is_control(i)
                                                 else 6 if theirs.is_byte(i) else 1 for i in numbers]
    assert keys["tokenizer.ggml.eos_token_id"] == theirs.eos_id() and keys["tokenizer.ggml.unknown_token_id"] == 0
    assert keys["tokenizer.ggml.add_space_prefix"] is False


def test_a_unigram_model_goes_along_as_t5(bitloom):
    (bitloom.folder / "unigram.txt").write_text(TEXT * 20, encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(input=str(bitloom.folder / "unigram.txt"),
                                             model_prefix=str(bitloom.folder / "unigram"), vocab_size=50, minloglevel=4)
    keys = contents(exported(bitloom, model(bitloom, "of-unigram", "unigram.model", 50)))
    assert keys["tokenizer.ggml.model"] == "t5"
    assert keys["tokenizer.ggml.add_space_prefix"] is True and keys["tokenizer.ggml.remove_extra_whitespaces"] is True
    charsmap = bytes(keys["tokenizer.ggml.precompiled_charsmap"])
    assert len(charsmap) > 1000 and charsmap in (bitloom.folder / "unigram.model").read_bytes()


def test_what_llama_cpp_does_not_have_is_refused(bitloom):
    def refused(source, code, text, *options, out="refused.gguf"):
        done = bitloom("export", source, "--to", "gguf", "--out", out, *options)
        assert done.returncode == code and text in done.stderr, done.stderr
        assert not (bitloom.folder / "refused.gguf").exists()

    refused(model(bitloom, "other-activation", "bytes", 257, activation="gelu"), 2, "activation: gelu; expected gelu_tanh")
    (bitloom.folder / "bpe.txt").write_text(TEXT * 20, encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(input=str(bitloom.folder / "bpe.txt"), model_prefix=str(bitloom.folder / "plain-bpe"),
                                             vocab_size=100, model_type="bpe", minloglevel=4)
    source = model(bitloom, "of-plain-bpe", "plain-bpe.model", 100)
    refused(source, 2, "has byte_fallback false; in a GGUF file llama.cpp would read other tokens: expected true for the type bpe")
    refused("of-bytes.safetensors", 2, "--type", "--type", "q4_0")
    refused("of-bytes.safetensors", 5, "nowhere", out="nowhere/refused.gguf")
    done = bitloom("export", "of-bytes.safetensors", "--out", "typed", "--type", "f16")
    assert done.returncode == 2 and "--type: f16 has no effect on the format" in done.stderr, done.stderr


@pytest.mark.torch
@pytest.mark.parametrize("kind", list(TYPES))
@pytest.mark.parametrize("name", ["bytes", "gpt2"])
def test_transformers_compute_our_logits_from_the_file_alone(bitloom, trained_gpts, name, kind):
    import torch
    import transformers

    path = exported(bitloom, trained_gpts[name], "--type", kind, name=f"{name}-{kind}.gguf")
    # The number of positions that they take from a file goes to n_ctx, which GPT2Config no longer reads.
    config = transformers.AutoConfig.from_pretrained(bitloom.folder, gguf_file=path.name)
    config.n_positions = CONTEXT
    theirs = transformers.AutoModelForCausalLM.from_pretrained(bitloom.folder, gguf_file=path.name, config=config).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(bitloom.folder, gguf_file=path.name)
    tokens = our_tokens(bitloom, name, PROMPT)
    assert tokenizer(PROMPT).input_ids == tokens
    ours = our_logits(bitloom, trained_gpts[name], tokens)
    ids = torch.tensor([tokens])
    with torch.no_grad():
        logits = theirs(ids).logits[0].float().numpy()
    error = np.abs(ours - logits).max()
    assert ours.std() > 0.1 and error < {"f32": 1e-4, "f16": 1e-2, "q8_0": 0.2}[kind], error
    if kind == "f32":
        written = theirs.generate(ids, do_sample=False, max_new_tokens=CONTEXT - len(tokens))[0].tolist()
        assert tokenizer.decode(written, skip_special_tokens=True) == our_text(bitloom, trained_gpts[name], CONTEXT - len(tokens))


# How sentencepiece's own defaults and others train models, by what llama.cpp reads them as.
OTHERS = {"t5": {"model_type": "unigram", "vocab_size": 50},
          "t5-plain": {"model_type": "unigram", "vocab_size": 50, "normalization_rule_name": "identity",
                       "add_dummy_prefix": False, "remove_extra_whitespaces": False},
          "llama": {"model_type": "bpe", "vocab_size": 330, "normalization_rule_name": "identity", "byte_fallback": True,
                    "remove_extra_whitespaces": False}}
TEXTS = [PROMPT, TEXT, "  two  spaces  ", "tabs\tand\nlines\r\n\r\n", "日本語テスト 👩‍👩‍👧 <|endoftext|> </s>", "ﬁne ①２ é e\u0301",
         "a" * 200]


@pytest.mark.torch
@pytest.mark.parametrize("name", list(OTHERS))
def test_llama_cpp_gives_the_tokens_of_models_of_others(bitloom, sentencepiece_model, name):
    import llama_cpp

    sentencepiece.SentencePieceTrainer.train(input=str(bitloom.folder / "gpt-lines.txt"), minloglevel=4,
                                             model_prefix=str(bitloom.folder / f"gguf-{name}"), **OTHERS[name])
    source = model(bitloom, f"other-{name}", f"gguf-{name}.model", OTHERS[name]["vocab_size"])
    theirs = llama_cpp.Llama(str(exported(bitloom, source, name=f"other-{name}.gguf")), n_ctx=CONTEXT, verbose=False)
    for text in TEXTS:
        line, = bitloom.lines_of_json("tokenizer", "info", f"gguf-{name}.model", "--json", "--text", text)
        assert theirs.tokenize(text.encode(), add_bos=True, special=False) == line["tokens"], text


@pytest.mark.torch
@pytest.mark.parametrize("name", list(TRAINED))
def test_llama_cpp_writes_the_same_text(bitloom, trained_gpts, name):
    """Tokens of difficult texts, and the likeliest text after a prompt."""
    import llama_cpp

    path = exported(bitloom, trained_gpts[name], name=f"{name}-llama.gguf")
    theirs = llama_cpp.Llama(str(path), n_ctx=CONTEXT, verbose=False)
    for text in TEXTS:
        assert theirs.tokenize(text.encode(), add_bos=True, special=False) == our_tokens(bitloom, name, text), text
    tokens = CONTEXT - len(our_tokens(bitloom, name, PROMPT)) - 1
    done = theirs.create_completion(PROMPT, max_tokens=tokens, temperature=0, top_k=1, repeat_penalty=1)
    assert PROMPT + done["choices"][0]["text"] == our_text(bitloom, trained_gpts[name], tokens)
