"""GPT-2's weights go between Bitloom and Hugging Face's transformers, and both compute the same logits from them."""
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

LIMIT = 1e-4
TOKENS = [72, 101, 108, 108, 111, 256, 0, 255, 32, 119, 111, 114, 108, 100]
SIZES = {"vocab_size": 257, "n_positions": 32, "n_embd": 24, "n_layer": 3, "n_head": 3, "bos_token_id": 256, "eos_token_id": 256}


def their_logits(model):
    import torch

    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0].float().numpy()


def our_logits(bitloom, model):
    done = bitloom("eval", model, "--tokens", ",".join(map(str, TOKENS)), "--logits", "logits.safetensors")
    assert done.returncode == 0, done.stderr
    return load_file(bitloom.folder / "logits.safetensors")["logits"]


def assert_same(ours, theirs):
    assert ours.shape == theirs.shape == (len(TOKENS), SIZES["vocab_size"])
    assert np.isfinite(ours).all() and theirs.std() > 0.1, "logits that say nothing"
    error = np.abs(ours - theirs).max()
    assert error < LIMIT, f"logits differ by {error}"


def random_model(**changes):
    """A small GPT-2 whose attention and vectors matter: initial weights of transformers are small, its vectors 0 and 1."""
    import torch
    import transformers

    torch.manual_seed(1)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**SIZES, **changes})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif not name.startswith("transformer.w"):
                parameter.mul_(6)
            else:
                parameter.mul_(4)
    return model


def imported(bitloom, folder):
    done = bitloom("import", "gpt", folder, "--out", f"{folder}.safetensors", "--tokenizer", "bytes")
    assert done.returncode == 0, done.stderr
    return f"{folder}.safetensors"


@pytest.mark.torch
@pytest.mark.parametrize("activation", ["gelu_new", "gelu", "relu"])
def test_weights_of_transformers_give_their_logits(bitloom, activation):
    model = random_model(activation_function=activation)
    folder = f"from-{activation}"
    model.save_pretrained(bitloom.folder / folder)
    assert_same(our_logits(bitloom, imported(bitloom, folder)), their_logits(model))


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_weights_of_16_bits_give_their_logits(bitloom, kind):
    import torch

    model = random_model().to(getattr(torch, kind))
    model.save_pretrained(bitloom.folder / kind)
    assert_same(our_logits(bitloom, imported(bitloom, kind)), their_logits(model.float()))


@pytest.mark.torch
def test_the_bare_model_is_read_too(bitloom):
    model = random_model()
    model.transformer.save_pretrained(bitloom.folder / "bare")
    assert_same(our_logits(bitloom, imported(bitloom, "bare")), their_logits(model))


@pytest.mark.torch
def test_transformers_compute_our_logits(bitloom):
    """transformers -> Bitloom -> transformers: what Bitloom writes is what it read, and needs nothing else."""
    import transformers

    first = random_model(activation_function="gelu")
    first.save_pretrained(bitloom.folder / "there")
    ours = imported(bitloom, "there")
    done = bitloom("export", ours, "--out", "back")
    assert done.returncode == 0, done.stderr
    model, report = transformers.GPT2LMHeadModel.from_pretrained(bitloom.folder / "back", output_loading_info=True)
    assert not report["unexpected_keys"] and not report["mismatched_keys"], report
    assert not set(report["missing_keys"]) - {"lm_head.weight"}, report  # tied to the table of tokens
    assert model.config.activation_function == "gelu" and model.config.eos_token_id == 256
    theirs = their_logits(model.eval())
    assert_same(our_logits(bitloom, ours), theirs)
    assert np.array_equal(theirs, their_logits(first))


@pytest.mark.torch
def test_perplexity_is_theirs(bitloom):
    """One window without overlap: the mean loss that transformers give."""
    import torch

    model = random_model()
    model.save_pretrained(bitloom.folder / "measured")
    text = "The king of hearts, I'm now."
    (bitloom.folder / "text.txt").write_text(text)
    done = bitloom("eval", imported(bitloom, "measured"), "--data", "text.txt", "--json")
    assert done.returncode == 0, done.stderr
    ids = torch.tensor([[256, *text.encode(), 256]])
    with torch.no_grad():
        expected = model(ids, labels=ids).loss.item()
    assert abs(json.loads(done.stdout)["text"]["loss"] - expected) < LIMIT
