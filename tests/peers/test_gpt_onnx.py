"""onnxruntime, and the standard's own reference in numpy, compute from exported GPTs what Bitloom does, all at once and token by token
with the cache of keys and values."""
import json
import subprocess
import sys

import numpy as np
import onnx.reference
import onnxruntime
import pytest
import sentencepiece
import tokenizers
from conftest import ROOT
from gpts import CONTEXT, HEADS, LAYERS, PROMPT, TEXT, WIDTH, model, our_logits, our_text, our_tokens, weights
from safetensors.numpy import load_file

LIMIT = 1e-4
TOKENS = [72, 101, 108, 108, 111, 256, 0, 255, 32, 119, 111, 114, 108, 100, 10, 84]
CACHE = [f"{layer}.{what}" for layer in range(LAYERS) for what in ("key", "value")]


def exported(bitloom, source, *options, name="exported.onnx"):
    done = bitloom("export", source, "--to", "onnx", "--out", name, *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{name}: ONNX"), done.stdout
    return bitloom.folder / name


class Net:
    """A session of onnxruntime, or another that has run()."""

    def __init__(self, path, session=None):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 2
        self.session = session or onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def __call__(self, ids, cache=None):
        """ids (batch, tokens); gives logits (batch, tokens, vocabulary) and the next cache."""
        ids = np.asarray(ids, np.int64)
        if cache is None:
            cache = [np.zeros((len(ids), HEADS, 0, WIDTH // HEADS), np.float32)] * len(CACHE)
        past = {f"past_key_values.{name}": value for name, value in zip(CACHE, cache, strict=True)}
        logits, *present = self.session.run(["logits", *(f"present.{name}" for name in CACHE)], {"input_ids": ids, **past})
        return logits, present


def assert_same(found, ours, limit=LIMIT):
    assert found.dtype == np.float32 and found.shape == ours.shape
    assert ours.std() > 0.1, "logits that say nothing"
    error = np.abs(found - ours).max()
    assert error < limit, error


@pytest.fixture(scope="module")
def byte_net(bitloom, byte_model):
    return Net(exported(bitloom, byte_model, name="byte-net.onnx"))


def test_what_the_file_says(bitloom, byte_model):
    path = exported(bitloom, byte_model)
    net = onnx.load(path)
    onnx.checker.check_model(net, full_check=True)
    assert net.ir_version == 8 and [(each.domain, each.version) for each in net.opset_import] == [("", 17)]
    assert {node.domain for node in net.graph.node} == {""}
    shapes = {value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
              for value in [*net.graph.input, *net.graph.output]}
    head = WIDTH // HEADS
    assert shapes == {"input_ids": ["batch_size", "sequence_length"], "logits": ["batch_size", "sequence_length", 257],
                      **{f"past_key_values.{name}": ["batch_size", HEADS, "past_sequence_length", head] for name in CACHE},
                      **{f"present.{name}": ["batch_size", HEADS, "past_sequence_length + sequence_length", head]
                         for name in CACHE}}
    assert [each.name for each in net.graph.output] == ["logits", *(f"present.{name}" for name in CACHE)]
    metadata = {each.key: each.value for each in net.metadata_props}
    assert metadata["context"] == str(CONTEXT) and metadata["tokenizer"] == "bytes" and metadata["end_of_text"] == "256"
    assert json.loads(metadata["bitloom.config"])["layers"] == LAYERS and metadata["bitloom.kind"] == "gpt"
    assert path.read_bytes() == exported(bitloom, byte_model, name="again.onnx").read_bytes()
    # Each parameter once: one table of tokens, without its padding.
    ours = load_file(bitloom.folder / byte_model)
    large = {each.name: onnx.numpy_helper.to_array(each) for each in net.graph.initializer if "/" not in each.name}
    for name, value in large.items():
        assert value.dtype == np.float32 and np.array_equal(value, ours[name][:257] if name == "embedding.tokens" else ours[name])
    assert set(large) == {name for name in ours if name != "tokenizer"}


def test_logits(bitloom, byte_model, byte_net):
    ours = our_logits(bitloom, byte_model, TOKENS)
    assert_same(byte_net([TOKENS])[0][0], ours)
    reference = onnx.reference.ReferenceEvaluator(onnx.load(bitloom.folder / "byte-net.onnx"))
    assert_same(Net(None, reference)([TOKENS])[0][0], ours)


def test_logits_with_the_cache(bitloom, byte_model, byte_net):
    """A few sequences at once, in parts of several lengths; the first of none, the whole context in the end."""
    draw = np.random.default_rng(3)
    sequences = draw.integers(0, 257, (3, CONTEXT))
    ours = np.stack([our_logits(bitloom, byte_model, sequence) for sequence in sequences])
    assert_same(byte_net(sequences)[0], ours)
    for lengths in [[1] * CONTEXT, [5, 1, 1, 17, 2, CONTEXT - 26]]:
        cache, begin = None, 0
        for length in lengths:
            logits, cache = byte_net(sequences[:, begin:begin + length], cache)
            assert_same(logits, ours[:, begin:begin + length])
            begin += length
            assert all(each.shape == (3, HEADS, begin, WIDTH // HEADS) for each in cache)
    # There is no position behind the context.
    with pytest.raises(Exception, match="[Oo]ut of .*bounds"):
        byte_net(sequences[:, :1], cache)


# Those that transformers have, under their names; the others are in trained nets.
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu", "sigmoid": None, "tanh": "tanh", "selu": None, "softplus": None,
               "relu": "relu"}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activation_functions(bitloom, byte_model, trained_gpts, activation):
    theirs = ACTIVATIONS[activation]
    if theirs is None:
        source = f"run-{activation}"
        done = bitloom("train", "gpt", "--data", "gpt.txt", "--layers", LAYERS, "--heads", HEADS, "--width", WIDTH, "--context", CONTEXT,
                       "--batch", 4, "--steps", 20, "--learning-rate", 1e-2, "--activation", activation, "--out", source)
        assert done.returncode == 0, done.stderr
    else:
        source = model(bitloom, activation, "bytes", 257, activation=theirs)
        ours = our_logits(bitloom, source, TOKENS)
        assert activation == "gelu_tanh" or np.abs(ours - our_logits(bitloom, byte_model, TOKENS)).max() > 3 * LIMIT
    assert_same(Net(exported(bitloom, source))([TOKENS])[0][0], our_logits(bitloom, source, TOKENS))


def test_all_activation_functions_are_tested(bitloom, gpt2_tokenizer):
    done = bitloom("train", "gpt", "--data", "gpt.txt", "--activation", "?", "--out", "nothing")
    assert done.returncode == 2 and ", ".join(ACTIVATIONS) in done.stderr, done.stderr


def test_matrices_in_f16(bitloom, byte_model, byte_net):
    """Those of the net with its matrices rounded."""
    values = {name: value.astype(np.float16).astype(np.float32) if value.ndim == 2 and name != "wpe.weight" else value
              for name, value in weights(257).items()}
    rounded = model(bitloom, "rounded", "bytes", 257, values=values)
    path = exported(bitloom, byte_model, "--type", "f16", name="f16.onnx")
    onnx.checker.check_model(onnx.load(path), full_check=True)
    found = Net(path)([TOKENS])[0][0]
    assert_same(found, our_logits(bitloom, rounded, TOKENS))
    assert np.abs(found - byte_net([TOKENS])[0][0]).max() > LIMIT
    whole = exported(bitloom, byte_model).stat().st_size
    assert whole / 2 < path.stat().st_size < 0.6 * whole


def greedy(net, tokens, count, with_cache):
    tokens = list(tokens)
    logits, cache = net([tokens])
    for _ in range(count):
        tokens.append(int(logits[0, -1].argmax()))
        if len(tokens) <= CONTEXT:
            logits, cache = net([tokens[-1:]], cache) if with_cache else net([tokens])
    return tokens


@pytest.mark.parametrize("name", ["bytes", "gpt2", "pieces"])
def test_the_likeliest_text(bitloom, trained_gpts, name):
    """With the tokenizer in the file, as a program without Bitloom would write it."""
    path = exported(bitloom, trained_gpts[name], name=f"{name}.onnx")
    metadata = {each.key: each.value for each in onnx.load(path).metadata_props}
    tokenizer = tokenizers.Tokenizer.from_str(metadata["tokenizer.json"])
    prompt = tokenizer.encode(PROMPT).ids
    assert prompt == our_tokens(bitloom, name, PROMPT)
    net = Net(path)
    assert_same(net([prompt])[0][0], our_logits(bitloom, trained_gpts[name], prompt))
    count = CONTEXT - len(prompt)
    ours = our_text(bitloom, trained_gpts[name], count)
    for with_cache in [True, False]:
        tokens = greedy(net, prompt, count, with_cache)
        if int(metadata["end_of_text"]) in tokens:
            tokens = tokens[:tokens.index(int(metadata["end_of_text"]))]
        assert tokenizer.decode(tokens) == ours
    # The script of the documents.
    done = subprocess.run([sys.executable, ROOT / "scripts/onnx_text.py", path, PROMPT, str(count)], capture_output=True, check=True)
    assert done.stdout.decode() == ours + "\n"


def test_a_tokenizer_that_tokenizer_json_cannot_say(bitloom):
    (bitloom.folder / "suffix.txt").write_text(TEXT * 20, encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(input=str(bitloom.folder / "suffix.txt"), treat_whitespace_as_suffix=True,
                                             model_prefix=str(bitloom.folder / "suffix"), vocab_size=50, minloglevel=4)
    done = bitloom("export", model(bitloom, "of-suffix", "suffix.model", 50), "--out", "suffix.onnx")
    assert done.returncode == 0 and "no tokenizer.json in its metadata" in done.stdout, done.stdout + done.stderr
    metadata = {each.key: each.value for each in onnx.load(bitloom.folder / "suffix.onnx").metadata_props}
    assert metadata["tokenizer"] == "sentencepiece" and "tokenizer.json" not in metadata


def test_refusals(bitloom, byte_model, model_file):
    def refuses(source, code, text, *options):
        done = bitloom("export", source, *options)
        assert done.returncode == code and text in done.stderr, done.stderr
        assert not (bitloom.folder / "refused.onnx").exists()

    refuses(byte_model, 2, "--type: q8_0; expected f32 or f16", "--out", "refused.onnx", "--type", "q8_0")
    refuses(byte_model, 2, "--mirror: off has no effect on the format 'onnx'", "--out", "refused.onnx", "--mirror", "off")
    refuses(model_file, 2, "--type: f16 has no effect on the format 'onnx'", "--out", "refused.onnx", "--type", "f16")
    refuses("gone", 3, "gone", "--out", "refused.onnx")
    refuses(byte_model, 5, "nowhere/refused.onnx", "--out", "nowhere/refused.onnx")
    # A weight that f16 does not have.
    values = weights(257)
    values["h.1.attn.c_attn.weight"][3, 5] = 70000
    refuses(model(bitloom, "large", "bytes", 257, values=values), 3,
            "the tensor 'blocks.1.attention.qkv.weight': 70000 has no f16", "--out", "refused.onnx", "--type", "f16")
