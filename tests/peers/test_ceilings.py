"""The twin of scripts/ceilings.py is the net: with a trained net's weights and thresholds it computes the net's bits."""
import json

import numpy as np
import pytest
from conftest import train
from read_model import Model, bits_of

# A layer with several thresholds below another one, two inputs of different size, every kind of pooling that keeps channels in place.
NET = """{"name": "own", "encoder": {"filters": 32},
  "layers": [{"name": "a", "inputs": ["input"], "width": 64, "thresholds": 2},
             {"name": "b", "inputs": ["a"], "pool": "or", "width": 40, "thresholds": 3, "kernel": 1, "padding": 0},
             {"name": "c", "inputs": ["b", "a"], "pool": "%s", "width": 48}],
  "stages": [{"name": "all", "train": ["a", "b", "c"], "heads": ["b", "c"], "epochs": 1}], "classifier": ["b", "c"]}"""


@pytest.mark.torch
@pytest.mark.parametrize("pool", ["and", "majority", "or"])
def test_twin_is_the_net(bitloom, pool):
    import torch
    from ceilings import Twin

    (bitloom.folder / f"{pool}.json").write_text(NET % pool)
    model = Model(train(bitloom, f"twin-{pool}", net=f"{pool}.json"))
    twin = Twin(model.net, model.tensors, len(model.classes)).eval()
    rows = {"input": 64} | {spec["name"]: spec["width"] for spec in model.net["layers"]}
    for spec in model.net["layers"]:
        layer, planes, size = twin.layers[spec["name"]], spec.get("thresholds", 1), spec["kernel"]
        sign = bits_of(model.tensors[spec["name"] + ".sign"]).reshape(spec["width"], size, size, -1)
        parts, begin = [], 0
        for name in spec["inputs"]:
            parts.append(sign[..., begin:begin + rows[name]])
            begin += -(-rows[name] // 64) * 64
        weights = 2.0 * np.concatenate(parts, axis=3).transpose(0, 3, 1, 2) - 1  # a set bit is the weight -1: see below
        products = sum(model.thresholds.get(name, 1) * rows[name] for name in spec["inputs"]) * size**2
        # The twin sets a bit, -1, where its sum, here minus the net's, is below 0; the net where at most T of its products are -1.
        limit = 2.0 * model.tensors[spec["name"] + ".threshold"] - products + 0.5
        with torch.no_grad():
            layer.latent.copy_(torch.tensor(weights))
            layer.norm.bias.zero_()
            layer.norm.running_mean.copy_(torch.tensor(limit))
        assert layer.norm.bias.shape == (planes * spec["width"],)
    images = np.random.default_rng(1).integers(0, 256, (12, 3, 32, 32), np.uint8)
    expected = model.maps(images)
    maps = {"input": twin.encoder(torch.tensor(images).float())}
    for spec in model.net["layers"]:
        with torch.no_grad():
            maps[spec["name"]] = twin.layers[spec["name"]]([maps[name] for name in spec["inputs"]])
        bits = (maps[spec["name"]] < 0).numpy().transpose(0, 2, 3, 1)
        wanted = expected[spec["name"]][..., :bits.shape[3]].astype(bool)
        assert 0.01 < wanted.mean() < 0.99, spec["name"]
        assert (bits == wanted).mean() == 1, f"{spec['name']}: {json.dumps(spec)}"
