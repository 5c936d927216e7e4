#!/usr/bin/env python3
"""Trains PyTorch's twin of a convolutional net as `bitloom train cnn` trains the net: what a user of PyTorch would have on the
same images and cores.

torch_cnn_train.py NET.json CIFAR-FOLDER [--epochs N] [--seed N] [--dtype f32|bf16] [--threads N]: the same
layers (scripts/torch_cnn.py), whitening and identity start, Nesterov SGD with the description's rates, triangle, lookahead,
label smoothing, alternating flips and shifts, channels last, autocast for bf16. Random numbers are PyTorch's own. Prints a line
an epoch; the last line is JSON with the test accuracy of six views and the seconds of training.
"""
import argparse
import json
import os
import pathlib
import re
import time

import numpy
import torch
import torch_cnn
from torch.nn import functional


def read_batch(path):
    data = numpy.fromfile(path, numpy.uint8).reshape(-1, 3073)
    return torch.from_numpy(data[:, 1:].reshape(-1, 3, 32, 32).copy()), torch.from_numpy(data[:, 0].astype(numpy.int64))


def read_cifar10(folder):
    parts = [read_batch(folder / f"data_batch_{i}.bin") for i in range(1, 6)]
    train = torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts])
    return train, read_batch(folder / "test_batch.bin")


def read_description(path):
    text = re.sub(r"^\s*//.*$", "", pathlib.Path(path).read_text(), flags=re.M)
    description = json.loads(text)
    description.setdefault("activation", "gelu")
    description["norm"] = {"momentum": 0.1, "epsilon": 1e-5, "gain": True, "bias_rate": 1, **description.get("norm", {})}
    defaults = {"conv": {"kernel": 3, "stride": 1}, "conv_group": {"convolutions": 2}, "basic_block": {"stride": 1},
                "linear": {"bias": True, "scale": 1}, "whitening": {"kernel": 2}, "max_pool": {"kernel": 2}}
    description["layers"] = [{**defaults.get(layer["kind"], {}), **layer} for layer in description["layers"]]
    return {**description, "image": {"height": 32, "width": 32, "channels": 3}, "classes": 10}


def whiten(convolution, images):
    kernel = convolution.kernel_size[0]
    patches = functional.unfold(images[:5000], kernel).transpose(1, 2).flatten(0, 1)
    values, vectors = torch.linalg.eigh(torch.cov(patches.T.double()))
    scaled = (vectors / torch.sqrt(values + 5e-4)).T.flip(0).float().reshape(-1, 3, kernel, kernel)
    convolution.weight.data = torch.cat((scaled, -scaled))


def begin(module, description, images):
    for layer in module.modules():
        if isinstance(layer, torch.nn.Conv2d) and layer.weight.requires_grad and description.get("identity_start"):
            torch.nn.init.dirac_(layer.weight.data[: layer.in_channels])
    first = module.layers[0]
    if description["layers"][0]["kind"] == "whitening":
        whiten(first, images)


def triangle(step, steps):
    warmup = min(int(0.23 * steps), steps - 1)
    if step < warmup:
        return 0.2 + 0.8 * step / warmup
    return 1 + (0.07 - 1) * (step - warmup) / (steps - warmup)


class Lookahead:
    def __init__(self, module, steps):
        self.state = [tensor for tensor in module.state_dict().values() if tensor.dtype.is_floating_point]
        self.slow = [tensor.clone() for tensor in self.state]
        self.steps = steps

    def update(self, step):
        keeps = 1 if step == self.steps else 0.95**5 * (step / self.steps) ** 3
        for slow, fast in zip(self.slow, self.state):
            slow.lerp_(fast, 1 - keeps)
            fast.copy_(slow)


def shifted(images, padding):
    """Each moved by its own -padding .. padding along both axes, reflected at the border."""
    padded = functional.pad(images, (padding,) * 4, "reflect")
    moves = torch.randint(2 * padding + 1, (len(images), 2))
    result = torch.empty_like(images)
    for y in range(2 * padding + 1):
        for x in range(2 * padding + 1):
            chosen = (moves[:, 0] == y) & (moves[:, 1] == x)
            result[chosen] = padded[chosen][:, :, y : y + 32, x : x + 32]
    return result


def classify(module, images, dtype):
    """Correct logits by six views."""
    padded = functional.pad(images, (1,) * 4, "reflect")
    views = [(images, 0.25), (padded[:, :, 0:32, 0:32], 0.125), (padded[:, :, 2:34, 2:34], 0.125)]
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16"):
        return sum(weight * (module(view) + module(view.flip(3))).float() for view, weight in views)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("net", type=read_description)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--epochs", type=float)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="bf16")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    description, training = arguments.net, arguments.net["training"]
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    (images, labels), (test_images, test_labels) = read_cifar10(arguments.folder)
    start = time.perf_counter()
    mean = images.float().mean((0, 2, 3), keepdim=True)
    deviation = images.float().std((0, 2, 3), keepdim=True)
    images, test_images = (images.float() - mean) / deviation, (test_images.float() - mean) / deviation
    batch = training["batch"]
    per_epoch = len(images) // batch
    steps = max(1, round((arguments.epochs or training["epochs"]) * per_epoch))
    module = torch_cnn.build(description)
    begin(module, description, images)
    module = module.to(memory_format=torch.channels_last).train()
    optimizer = torch_cnn.make_optimizer(module, training["learning_rate"], training["weight_decay"], training["momentum"],
                                         description["norm"]["bias_rate"], description.get("decays_vectors", False))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: triangle(step, steps))
    every = training.get("lookahead", 0)
    lookahead = Lookahead(module, steps) if every else None
    padding = int(re.search(r"crop(\d+)", training["augment"]).group(1)) if "crop" in training["augment"] else 0
    flipped_first = torch.rand(len(images)) < 0.5
    total = 0.0
    for step in range(steps):
        epoch, place = divmod(step, per_epoch)
        if place == 0:
            order = torch.randperm(len(images))
        chosen = order[place * batch : (place + 1) * batch]
        x = shifted(images[chosen], padding) if padding else images[chosen]
        if training["flip"] != "none":
            mirror = flipped_first[chosen] != (epoch % 2 == 1) if training["flip"] == "alternating" else torch.rand(batch) < 0.5
            x = torch.where(mirror[:, None, None, None], x.flip(3), x)
        x = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=arguments.dtype == "bf16"):
            logits = module(x)
        loss = functional.cross_entropy(logits.float(), labels[chosen], label_smoothing=training["label_smoothing"])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        if lookahead and ((step + 1) % every == 0 or step + 1 == steps):
            lookahead.update(step + 1)
        total += loss.item()
        if place + 1 == per_epoch or step + 1 == steps:
            print(f"epoch {epoch + 1}: training loss {total / (place + 1):.4f}, {time.perf_counter() - start:.0f} s", flush=True)
            total = 0.0
    seconds = time.perf_counter() - start
    module.eval()
    correct = sum(int((classify(module, x, arguments.dtype).argmax(1) == y).sum())
                  for x, y in zip(test_images.split(256), test_labels.split(256)))
    print(json.dumps({"test_accuracy": correct / len(test_labels), "seconds": seconds, "steps": steps, "seed": arguments.seed,
                      "dtype": arguments.dtype, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
