"""A step of Muon is that of PyTorch's own, told by the checkpoints before and after it."""
import json

import numpy as np
import pytest
from gpts import TEXT
from safetensors.numpy import load_file

MOMENTUM, DECAY = 0.95, 0.01  # the program's


def run_on(bitloom, *options):
    """The checkpoint that a training ends with, and the learning rate of its last step."""
    done = bitloom("train", "gpt", "--out", "muon", *options)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (bitloom.folder / "muon" / "metrics.jsonl").read_text("utf-8").splitlines()]
    return load_file(bitloom.folder / "muon" / "checkpoint.safetensors"), [line["rate"] for line in lines if line["event"] == "step"][-1]


@pytest.fixture(scope="module")
def step(bitloom):
    """Its rate, and by a matrix's name its values and momentum before and after."""
    (bitloom.folder / "muon.txt").write_text(TEXT * 20, encoding="utf-8")
    before, _ = run_on(bitloom, "--data", "muon.txt", "--tokenizer", "bytes", "--layers", 2, "--heads", 2, "--width", 32, "--context", 32,
                       "--batch", 4, "--dropout", 0, "--optimizer", "muon", "--log-every", 1, "--steps", 3)
    after, rate = run_on(bitloom, "--resume", "--steps", 4)
    prefix = "optimizer.momentum."
    names = [name.removeprefix(prefix) for name in after if name.startswith(prefix)]
    assert len(names) == 2 * 4
    return rate, {name: [file[prefix * of_momentum + name] for file in (before, after) for of_momentum in (0, 1)] for name in names}


def moved_by_torch(rate, value, momentum, gradient):
    import torch

    parameter = torch.nn.Parameter(torch.tensor(value))
    parameter.grad = torch.tensor(gradient)
    muon = torch.optim.Muon([parameter], lr=rate, weight_decay=DECAY, momentum=MOMENTUM, adjust_lr_fn="match_rms_adamw")
    # A mean of gradients, where Bitloom has their sum.
    muon.state[parameter]["momentum_buffer"] = torch.tensor((1 - MOMENTUM) * momentum)
    muon.step()
    return parameter.detach().numpy()


@pytest.mark.torch
def test_matrices_move_as_by_torch(step, monkeypatch):
    import torch

    monkeypatch.setattr(torch, "bfloat16", torch.float32)  # in which it makes matrices orthogonal: steps differ by 6%
    rate, matrices = step
    for name, (value, momentum, new_value, new_momentum) in matrices.items():
        gradient = new_momentum - MOMENTUM * momentum
        # Queries', keys' and values' weights are matrices of their own.
        blocks = [np.split(each, 3 if ".qkv." in name else 1, axis=1) for each in (value, momentum, gradient)]
        theirs = np.concatenate([moved_by_torch(rate, *block) for block in zip(*blocks)], axis=1)
        size = np.linalg.norm(new_value - value)
        assert size > 0.1 * rate, "a step that says nothing"
        error = np.linalg.norm(theirs - new_value) / size
        assert error < 1e-3, f"{name}: {error}"
