"""PyTorch computes from exported convolutional nets what Bitloom does, and Bitloom from weights of PyTorch what PyTorch does."""
import json

import numpy as np
import pytest

LIMIT = 1e-4
# Every kind of layer, besides those of the named nets.
OWN_NET = """{"name": "own", "activation": "silu", "norm": {"epsilon": 0.01},
  "layers": [{"kind": "whitening", "kernel": 3}, {"kind": "activation"}, {"kind": "conv", "channels": 12, "kernel": 5, "stride": 2},
             {"kind": "norm"}, {"kind": "max_pool", "kernel": 2}, {"kind": "conv_group", "channels": 10, "convolutions": 3},
             {"kind": "basic_block", "channels": 10}, {"kind": "basic_block", "channels": 9, "stride": 2},
             {"kind": "linear", "scale": 2}]}"""


def trained(bitloom, net, steps, *options, out=None):
    """The run folder of a short training."""
    out = out or f"cnn-{net}"
    if net == "own":
        (bitloom.folder / "own.json").write_text(OWN_NET)
    done = bitloom("train", "cnn", "--net", "own.json" if net == "own" else net, "--data", "synth", "--max-train", 200,
                   "--max-test", 20, "--validation", 0, "--batch", 40, "--steps", steps, "--out", out, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def exported(bitloom, model):
    done = bitloom("export", model, "--out", f"{model}-exported")
    assert done.returncode == 0, done.stderr
    return bitloom.folder / f"{model}-exported" / "model.safetensors"


def our_probabilities(bitloom, model, files, classes):
    """(images, classes), of the images themselves: no views are averaged."""
    lines = bitloom.lines_of_json("predict", model, *files, "--jsonl", "--mirror", "off", "--shift", 0)
    return np.array([[line["probabilities"][name] for name in classes] for line in lines])


def assert_same(bitloom, model, module, scale, classes, images):
    import torch
    import torch_cnn

    pixels, files = images
    logits = torch_cnn.classify(module, scale, pixels.transpose(0, 2, 3, 1).copy())
    theirs = torch.log_softmax(logits, 1).numpy()
    ours = np.log(our_probabilities(bitloom, model, files, classes))
    assert ours.shape == theirs.shape == (len(files), len(classes))
    assert theirs.std(axis=0).max() > 10 * LIMIT, "logits that say nothing of the image"
    error = np.abs(ours - theirs).max()
    assert error < LIMIT, f"logarithms of probabilities differ by {error}"


@pytest.mark.torch
@pytest.mark.parametrize("net, steps", [("tiny", 20), ("airbench94", 1), ("own", 10)])
def test_pytorch_computes_what_a_trained_net_does(bitloom, images, net, steps):
    import torch_cnn

    model = trained(bitloom, net, steps)
    module, scale, classes = torch_cnn.load(exported(bitloom, model))
    assert_same(bitloom, model, module, scale, classes, images)


@pytest.mark.torch
def test_a_checkpoint_is_exported_as_it_is_evaluated(bitloom, images):
    """Of a run that is not finished: by its slow weights. The export had the parameters themselves."""
    import torch_cnn

    model = trained(bitloom, "tiny", 18, "--lookahead", 12, "--checkpoint-seconds", 0, out="cnn-stopped")
    (bitloom.folder / model / "model.safetensors").unlink()
    # The checkpoint after the last step has equal weights of both kinds: the one before it has not.
    (bitloom.folder / model / "checkpoint.safetensors").unlink()
    (bitloom.folder / model / "checkpoint.previous.safetensors").rename(bitloom.folder / model / "checkpoint.safetensors")
    module, scale, classes = torch_cnn.load(exported(bitloom, model))
    assert_same(bitloom, model, module, scale, classes, images)


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_bitloom_computes_what_a_module_of_pytorch_does(bitloom, images, kind):
    """A module that PyTorch trained for a few steps, described by the metadata of the file that its weights are saved to."""
    import safetensors.torch
    import torch
    import torch_cnn

    pixels, _ = images
    like = trained(bitloom, "tiny", 1, out=f"cnn-like-{kind}")
    _, scale, classes = torch_cnn.load(exported(bitloom, like))
    with safetensors.safe_open(bitloom.folder / f"{like}-exported" / "model.safetensors", framework="pt") as file:
        metadata = {key: value for key, value in file.metadata().items() if key != "bitloom.xxh3"}
    torch.manual_seed(1)
    module = torch_cnn.build(json.loads(metadata["bitloom.config"])).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.3, momentum=0.9)
    x = torch.from_numpy((pixels - 120.0) / 60).float()
    for _ in range(5):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(x), torch.arange(len(x))).backward()
        optimizer.step()
    state = {name: value.to(getattr(torch, kind)) if value.is_floating_point() else value
             for name, value in module.state_dict().items()}
    assert any(name.endswith("num_batches_tracked") for name in state)
    safetensors.torch.save_file(state, bitloom.folder / f"theirs-{kind}.safetensors", metadata=metadata)
    module.load_state_dict(state)
    done = bitloom("import", "cnn", f"theirs-{kind}.safetensors", "--out", f"imported-{kind}.safetensors")
    assert done.returncode == 0, done.stderr
    assert_same(bitloom, f"imported-{kind}.safetensors", module.eval(), scale, classes, images)
    # Without metadata another model says what the net is.
    safetensors.torch.save_file(state, bitloom.folder / "bare.safetensors")
    done = bitloom("import", "cnn", "bare.safetensors", "--out", "again.safetensors")
    assert done.returncode == 2 and "--like: missing" in done.stderr
    done = bitloom("import", "cnn", "bare.safetensors", "--out", "again.safetensors", "--like", like)
    assert done.returncode == 0, done.stderr
    same = (bitloom.folder / "again.safetensors").read_bytes() == (bitloom.folder / f"imported-{kind}.safetensors").read_bytes()
    assert same
