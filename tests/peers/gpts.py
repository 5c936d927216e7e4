"""Small GPTs for tests of what they are exported to: with random weights, or trained, with tokenizers of every kind (the fixtures are
in conftest.py)."""
import json

import numpy as np
from safetensors.numpy import load_file, save_file

CONTEXT, LAYERS, HEADS, WIDTH = 48, 2, 2, 64
TEXT = "The king of France, and his citizens; shall never speak again. naïve café Привет мир 日本語 😀 it's 1789\n"
TRAINED = {"bytes": "bytes", "gpt2": "gpt-gpt2", "pieces": "gpt-pieces"}  # their tokenizers
PROMPT = "The king of"


def weights(vocabulary, width=WIDTH):
    """Random ones under transformers' names, of which the most likely next token depends on the ones before."""
    draw = np.random.default_rng(1)
    shapes = {"wte.weight": (vocabulary, width), "wpe.weight": (CONTEXT, width), "ln_f.weight": (width,), "ln_f.bias": (width,)}
    for layer in range(LAYERS):
        for name, shape in {"ln_1.weight": (width,), "ln_1.bias": (width,), "attn.c_attn.weight": (width, 3 * width),
                            "attn.c_attn.bias": (3 * width,), "attn.c_proj.weight": (width, width), "attn.c_proj.bias": (width,),
                            "ln_2.weight": (width,), "ln_2.bias": (width,), "mlp.c_fc.weight": (width, 4 * width),
                            "mlp.c_fc.bias": (4 * width,), "mlp.c_proj.weight": (4 * width, width), "mlp.c_proj.bias": (width,)
                            }.items():
            shapes[f"h.{layer}.{name}"] = shape
    values = {name: 0.2 * draw.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    for name, value in values.items():
        if name.startswith("ln") or ".ln_" in name:
            value += name.endswith("weight")
    return values


def model(bitloom, name, tokenizer, vocabulary, width=WIDTH, activation="gelu_new", values=None):
    """A model file, with `values` instead of weights()."""
    folder = bitloom.folder / f"{name}-theirs"
    folder.mkdir(exist_ok=True)
    config = {"model_type": "gpt2", "vocab_size": vocabulary, "n_positions": CONTEXT, "n_embd": width, "n_layer": LAYERS,
              "n_head": HEADS, "activation_function": activation}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(values or weights(vocabulary, width), folder / "model.safetensors")
    done = bitloom("import", "gpt", folder, "--out", f"{name}.safetensors", "--tokenizer", tokenizer)
    assert done.returncode == 0, done.stderr
    return f"{name}.safetensors"


def our_tokens(bitloom, name, text):
    line, = bitloom.lines_of_json("tokenizer", "info", TRAINED[name], "--json", "--text", text)
    return line["tokens"]


def our_text(bitloom, run, tokens):
    """The prompt and the likeliest text after it."""
    done = bitloom("sample", run, "--prompt", PROMPT, "--temperature", 0, "--tokens", tokens)
    assert done.returncode == 0, done.stderr
    assert len(set(done.stdout)) > 10, "text that says nothing"
    return done.stdout.removesuffix("\n")


def our_logits(bitloom, source, tokens):
    """(tokens, vocabulary)"""
    done = bitloom("eval", source, "--tokens", ",".join(map(str, tokens)), "--logits", "gpt-logits.safetensors")
    assert done.returncode == 0, done.stderr
    return load_file(bitloom.folder / "gpt-logits.safetensors")["logits"]
