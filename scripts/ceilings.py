#!/usr/bin/env python3
"""The ceiling of a binary net: its twin in PyTorch, which backpropagation trains from end to end.

ceilings.py RUN|MODEL --data FOLDER [--epochs N] [--images N] [--batch N] [--rate X] [--seed N] [--device cpu|cuda] [--bf16] [--out FILE]:
takes encoder, layers and heads from the description in a trained model, nothing that its layers or heads learned. The twin has floats
behind its weights' signs and batch norm in place of thresholds; gradients pass signs where the number is between -1 and 1
(straight-through estimation; Hubara et al., Binarized Neural Networks, 2016). All layers learn at once under the heads that vote; Adam,
cosine, crops and mirror images as `train binary` has them by default. What the twin reaches the net could; the rest is learning's.
Prints a line per epoch, with the accuracy of some validation images, and ends with a line of JSON. Test accuracy is that of an image
and its mirror image, as the net's own. On a CPU of two cores an epoch of cifar-small takes minutes, of cifar-base half an hour.
"""
import argparse
import json
import math
import pathlib
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import read_model

VALIDATION = 5000  # the last training images: a split of its own
GLANCE = 500  # of them, after every epoch but the last


class Sign(torch.autograd.Function):
    """-1 or 1; gradients pass where |x| <= 1."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return torch.where(x < 0, -1.0, 1.0).to(x.dtype)

    @staticmethod
    def backward(context, gradient):
        (x,) = context.saved_tensors
        return gradient * (x.abs() <= 1)


class Encoder(nn.Module):
    """FORMAT.md, section 4, with bits as -1 (set) and 1."""

    def __init__(self, tensors):
        super().__init__()
        filters = torch.tensor(tensors["encoder.filters"].astype(np.float32))  # (F, p, p, colours)
        self.register_buffer("filters", filters.permute(0, 3, 1, 2).contiguous())
        thresholds = torch.tensor(tensors["encoder.thresholds"].astype(np.float32))
        self.register_buffer("upper", thresholds[:, 0].view(-1, 1, 1))
        self.register_buffer("lower", thresholds[:, 1].view(-1, 1, 1))
        self.contrast = float(tensors["encoder.contrast"][0]) if "encoder.contrast" in tensors else None

    @torch.no_grad()
    def forward(self, pixels):
        with torch.autocast(pixels.device.type, enabled=False):  # counts of grey levels need all of f32
            return self.bits(pixels)

    def bits(self, pixels):
        size = self.filters.shape[2]
        padded = functional.pad(pixels, [size // 2] * 4, mode="replicate")
        responses = functional.conv2d(padded, self.filters)
        if self.contrast is not None:
            window = torch.ones(1, pixels.shape[1], size, size, device=pixels.device)
            taps = window.numel()
            mean = functional.conv2d(padded, window) / taps
            variance = (functional.conv2d(padded * padded, window) / taps - mean * mean).clamp(min=0)
            responses = (responses * (self.contrast / (variance + self.contrast**2).sqrt())).trunc()
        bits = torch.stack([responses >= self.upper, responses <= self.lower], dim=2).flatten(1, 2)
        return torch.where(bits, -1.0, 1.0)


def pooled(x, kind, factor):
    if factor == 1:
        return x
    if kind in ("or", "none"):
        return -functional.max_pool2d(-x, factor)
    if kind == "and":
        return functional.max_pool2d(x, factor)
    if kind == "majority":
        return Sign.apply(functional.avg_pool2d(x, factor))
    return functional.pixel_unshuffle(x, factor)


def joined(planes, map, kind, factor, padding):
    """An input of a layer as its weights meet it: planes are pooled and padded with clear bits one by one, and share weights."""
    n, channels, height, width = map.shape
    x = pooled(map.reshape(n * planes, channels // planes, height, width), kind, factor)
    x = functional.pad(x, [padding] * 4, value=1.0)
    return x.view(n, planes, *x.shape[1:]).sum(1) if planes > 1 else x


class Layer(nn.Module):
    """`inputs`: planes and rows of each; `offset`: standard deviations by which thresholds begin below the mean: few bits are set."""

    def __init__(self, spec, inputs, offset):
        super().__init__()
        if spec["weights"] != "binary":
            sys.exit(f"ceilings.py: layer '{spec['name']}' has {spec['weights']} weights; expected binary ones")
        self.spec, self.inputs = spec, inputs
        self.planes = spec.get("thresholds", 1)
        channels = sum(rows for _, rows in inputs) * (4 if spec["pool"] == "space_to_depth" else 1)
        self.latent = nn.Parameter(torch.empty(spec["width"], channels, spec["kernel"], spec["kernel"]).uniform_(-0.1, 0.1))
        self.norm = nn.BatchNorm2d(self.planes * spec["width"])
        # Thresholds of a row begin 0.9 standard deviations apart, as in layerwise/layer_trainer.cpp.
        offsets = offset + 0.9 * (torch.arange(self.planes) - (self.planes - 1) / 2)
        self.norm.bias.data = offsets.repeat_interleave(spec["width"])

    def forward(self, maps):
        height = min(x.shape[2] for x in maps) // (1 if self.spec["pool"] == "none" else 2)
        x = torch.cat([joined(planes, each, self.spec["pool"], each.shape[2] // height, self.spec["padding"])
                       for (planes, _), each in zip(self.inputs, maps)], dim=1)
        x = functional.conv2d(x, Sign.apply(self.latent), stride=self.spec["stride"])
        return Sign.apply(self.norm(x.repeat(1, self.planes, 1, 1)))


class Head(nn.Module):
    """Counts of set bits per cell, a linear map of them and, of kind "hidden", units that look at one cell each."""

    def __init__(self, spec, channels, classes):
        super().__init__()
        if spec["kind"] not in ("hidden", "linear"):
            sys.exit(f"ceilings.py: a head of kind '{spec['kind']}'; expected hidden or linear")
        self.grid = spec["grid"]
        self.norm = nn.BatchNorm1d(channels * self.grid**2, affine=False)
        self.linear = nn.Linear(channels * self.grid**2, classes)
        nn.init.zeros_(self.linear.weight)
        self.units = nn.Linear(channels, spec["hidden"]) if spec["kind"] == "hidden" else None
        if self.units is not None:
            self.output = nn.Linear(spec["hidden"] * self.grid**2, classes, bias=False)

    def forward(self, x):
        counts = functional.adaptive_avg_pool2d((1 - x) / 2, self.grid).permute(0, 2, 3, 1)  # (N, G, G, C)
        features = self.norm(counts.flatten(1))
        logits = self.linear(features)
        if self.units is not None:
            hidden = functional.relu(self.units(features.view(*counts.shape)))
            logits = logits + self.output(hidden.flatten(1))
        return logits


class Twin(nn.Module):
    def __init__(self, net, tensors, classes):
        super().__init__()
        self.encoder = Encoder(tensors)
        outputs = {"input": (1, 2 * len(tensors["encoder.filters"]))}  # planes and rows
        layers, heads = {}, {}
        for spec in net["layers"]:
            name = spec["name"]
            options = next(stage.get("options", {}) for stage in net["stages"] if name in stage["train"])
            layers[name] = Layer(spec, [outputs[each] for each in spec["inputs"]], -options.get("initial_offset", -1.0))
            outputs[name] = (layers[name].planes, spec["width"])
        for name in net["classifier"]:
            spec = next(stage["head"] for stage in reversed(net["stages"]) if name in stage["heads"])
            planes, rows = outputs[name]
            heads[name] = Head(spec, planes * rows, classes)
        self.layers, self.heads = nn.ModuleDict(layers), nn.ModuleDict(heads)

    def forward(self, pixels):
        """Logits of every head that votes."""
        maps = {"input": self.encoder(pixels).contiguous(memory_format=torch.channels_last)}
        for name, layer in self.layers.items():
            maps[name] = layer([maps[each] for each in layer.spec["inputs"]])
        return [head(maps[name]) for name, head in self.heads.items()]

    def clip(self):
        with torch.no_grad():
            for layer in self.layers.values():
                layer.latent.clamp_(-1, 1)


def read_batches(folder, names):
    records = np.concatenate([np.fromfile(folder / name, np.uint8).reshape(-1, 3073) for name in names])
    return torch.tensor(records[:, 1:].reshape(-1, 3, 32, 32)), torch.tensor(records[:, 0].astype(np.int64))


def augmented(images, generator):
    """Crops of images that are reflected beyond their edge, by up to 4 pixels, and mirror images."""
    padded = functional.pad(images.float(), [4] * 4, mode="reflect")
    out = torch.empty(images.shape, dtype=torch.float32)
    moves = torch.randint(0, 9, (len(images), 2), generator=generator)
    mirrored = torch.rand(len(images), generator=generator) < 0.5
    for i, (down, across) in enumerate(moves.tolist()):
        crop = padded[i, :, down:down + 32, across:across + 32]
        out[i] = crop.flip(-1) if mirrored[i] else crop
    return out


@torch.no_grad()
def accuracy(twin, images, labels, options):
    twin.eval()
    right = 0
    for begin in range(0, len(images), 250):
        some = images[begin:begin + 250].float().to(options.device)
        with torch.autocast(options.device, torch.bfloat16, enabled=options.bf16):
            votes = [logits.float().log_softmax(1) for view in (some, some.flip(-1)) for logits in twin(view)]
        right += (sum(votes).argmax(1).cpu() == labels[begin:begin + 250]).sum().item()
    twin.train()
    return right / len(images)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--images", type=int, default=50000 - VALIDATION)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    generator = torch.Generator().manual_seed(options.seed)
    model = options.model / "model.safetensors" if options.model.is_dir() else options.model
    tensors, metadata = read_model.read_file(model)
    net = json.loads(metadata["bitloom.net"])
    twin = Twin(net, tensors, len(json.loads(metadata["bitloom.classes"]))).to(options.device)
    images, labels = read_batches(options.data, [f"data_batch_{i}.bin" for i in range(1, 6)])
    held_back = (images[-VALIDATION:], labels[-VALIDATION:])
    images, labels = images[:-VALIDATION][:options.images], labels[:-VALIDATION][:options.images]
    test = read_batches(options.data, ["test_batch.bin"])
    optimizer = torch.optim.Adam(twin.parameters(), lr=options.rate)
    steps = options.epochs * (len(images) // options.batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / min(300, steps)) * (0.01 + 0.99 * (1 + math.cos(math.pi * step / steps)) / 2))
    print(f"twin of net '{net['name']}': {sum(p.numel() for p in twin.parameters()):,} parameters, {len(images)} images, "
          f"{options.epochs} epochs on {options.device}", flush=True)
    start = time.time()
    line = {}
    for epoch in range(1, options.epochs + 1):
        order = torch.randperm(len(images), generator=generator)
        right = seen = 0
        for begin in range(0, len(images) - options.batch + 1, options.batch):
            chosen = order[begin:begin + options.batch]
            some = augmented(images[chosen], generator).to(options.device)
            wanted = labels[chosen].to(options.device)
            with torch.autocast(options.device, torch.bfloat16, enabled=options.bf16):
                outputs = twin(some)
            loss = sum(functional.cross_entropy(logits.float(), wanted) for logits in outputs)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            twin.clip()
            right += (outputs[-1].argmax(1) == wanted).sum().item()
            seen += len(chosen)
        last = epoch == options.epochs
        some = VALIDATION if last else GLANCE
        line = {"net": net["name"], "epoch": epoch, "epochs": options.epochs, "minutes": round((time.time() - start) / 60, 2),
                "training_accuracy": right / seen,
                "validation_accuracy": accuracy(twin, held_back[0][:some], held_back[1][:some], options)}
        if last:
            line["test_accuracy"] = accuracy(twin, *test, options)
        print(f"epoch {epoch}/{options.epochs}: training {line['training_accuracy']:.2%}, validation {line['validation_accuracy']:.2%} of "
              f"{some}, {line['minutes']:.1f} min", flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps(line))
    print(json.dumps(line))


if __name__ == "__main__":
    main()
