#!/usr/bin/env python3
"""PyTorch's twin of a convolutional net of Bitloom: `build(description)` gives a module whose state_dict has the names that
`bitloom export` writes; `load(file)` reads such an export.

torch_cnn.py EXPORTED.safetensors [IMAGES.npy]: loads an export and prints its layers; with images (N, height, width, channels)
of bytes, the classes that it gives them. Needs torch, safetensors and numpy.
"""
import json
import sys

import torch
from torch import nn
from torch.nn import functional

ACTIVATIONS = {
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "silu": nn.SiLU,
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "selu": nn.SELU,
    "softplus": nn.Softplus,
}


class Described:
    """Layers by the keys of a description's `norm` and `activation`."""

    def __init__(self, description):
        self.norm_options = description["norm"]
        self.activation = ACTIVATIONS[description["activation"]]

    def norm(self, channels, kind=nn.BatchNorm2d):
        norm = kind(channels, eps=self.norm_options["epsilon"], momentum=self.norm_options["momentum"])
        norm.weight.requires_grad = self.norm_options["gain"]
        return norm

    @staticmethod
    def conv(inputs, outputs, kernel, stride=1):
        return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)


class ConvGroup(nn.Module):
    def __init__(self, make, inputs, channels, convolutions):
        super().__init__()
        self.count = convolutions
        self.activation = make.activation()
        for i in range(1, convolutions + 1):
            setattr(self, f"conv{i}", make.conv(inputs if i == 1 else channels, channels, 3))
            setattr(self, f"norm{i}", make.norm(channels))

    def forward(self, x):
        x = self.activation(self.norm1(functional.max_pool2d(self.conv1(x), 2)))
        if self.count == 2:
            x = self.activation(self.norm2(self.conv2(x)))
        if self.count == 3:
            inside = self.activation(self.norm2(self.conv2(x)))
            x = self.activation(self.norm3(self.conv3(inside)) + x)
        return x


class BasicBlock(nn.Module):
    def __init__(self, make, inputs, channels, stride):
        super().__init__()
        self.activation = make.activation()
        self.conv1, self.norm1 = make.conv(inputs, channels, 3, stride), make.norm(channels)
        self.conv2, self.norm2 = make.conv(channels, channels, 3), make.norm(channels)
        self.has_skip = stride != 1 or inputs != channels
        if self.has_skip:
            self.skip_conv, self.skip_norm = make.conv(inputs, channels, 1, stride), make.norm(channels)

    def forward(self, x):
        inside = self.norm2(self.conv2(self.activation(self.norm1(self.conv1(x)))))
        return self.activation(inside + (self.skip_norm(self.skip_conv(x)) if self.has_skip else x))


class GlobalMaxPool(nn.Module):
    def forward(self, x):
        return x.amax((2, 3))


class GlobalMeanPool(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))


class FlatLinear(nn.Linear):
    """Maps are flattened as (height, width, channels), which is how Bitloom has them."""

    def __init__(self, inputs, outputs, bias, scale):
        super().__init__(inputs, outputs, bias)
        self.scale = scale

    def forward(self, x):
        if x.ndim == 4:
            x = x.permute(0, 2, 3, 1).flatten(1)
        return super().forward(x) * self.scale


class Net(nn.Module):
    """From images (N, channels, height, width) to logits (N, classes)."""

    def __init__(self, description):
        super().__init__()
        make = Described(description)
        image = description["image"]
        channels, side = image["channels"], (image["height"], image["width"])
        layers = []
        for layer in description["layers"]:
            kind, width = layer["kind"], layer.get("channels", channels)
            if kind == "whitening":
                width = 2 * channels * layer["kernel"] ** 2
                layers.append(nn.Conv2d(channels, width, layer["kernel"]))
                layers[-1].weight.requires_grad = False
            elif kind == "conv":
                layers.append(make.conv(channels, width, layer["kernel"], layer["stride"]))
            elif kind == "norm":
                is_pooled = any(isinstance(before, (GlobalMaxPool, GlobalMeanPool)) for before in layers)
                layers.append(make.norm(channels, nn.BatchNorm1d if is_pooled else nn.BatchNorm2d))
            elif kind == "activation":
                layers.append(make.activation())
            elif kind == "max_pool":
                layers.append(nn.MaxPool2d(layer["kernel"]))
            elif kind == "global_max_pool":
                layers.append(GlobalMaxPool())
            elif kind == "global_mean_pool":
                layers.append(GlobalMeanPool())
            elif kind == "conv_group":
                layers.append(ConvGroup(make, channels, width, layer["convolutions"]))
            elif kind == "basic_block":
                layers.append(BasicBlock(make, channels, width, layer["stride"]))
            elif kind == "linear":
                with torch.no_grad():
                    features = nn.Sequential(*layers)(torch.zeros(2, image["channels"], *side)).flatten(1).shape[1]
                layers.append(FlatLinear(features, description["classes"], layer["bias"], layer["scale"]))
            else:
                raise ValueError(f"layer of kind '{kind}'")
            channels = width
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x)


def build(description):
    return Net(description)


def make_optimizer(module, rate, decay, momentum, bias_rate=1, decays_vectors=False):
    """SGD as `bitloom train cnn` has it: Nesterov momentum; biases of norms learn bias_rate times as fast; a step at the peak
    rate decays by `decay` whatever the rate of a parameter."""
    groups = {}
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        own = rate * (bias_rate if name.endswith(".bias") and "norm" in name else 1)
        decays = parameter.ndim > 1 or decays_vectors
        groups.setdefault((own, decay / own if decays else 0.0), []).append(parameter)
    return torch.optim.SGD([{"params": parameters, "lr": lr, "weight_decay": wd} for (lr, wd), parameters in groups.items()],
                           lr=rate, momentum=momentum, nesterov=True, foreach=True)


def load(path):
    """The module in evaluation mode, the scale of pixels (mean, deviation: tensors by channel) and the classes' names."""
    import safetensors.torch

    with safetensors.safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    module = build(json.loads(metadata["bitloom.config"]))
    missing, unexpected = module.load_state_dict(safetensors.torch.load_file(path), strict=False)
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    if missing or unexpected:
        raise ValueError(f"{path}: without {missing}, with {unexpected}")
    pixels = json.loads(metadata["bitloom.pixels"])
    scale = torch.tensor(pixels["mean"]), torch.tensor(pixels["deviation"])
    return module.eval(), scale, json.loads(metadata["bitloom.classes"])


def classify(module, scale, images):
    """Logits (N, classes) of bytes (N, height, width, channels), a numpy array."""
    mean, deviation = scale
    x = (torch.from_numpy(images).float() - mean) / deviation
    with torch.no_grad():
        return module(x.permute(0, 3, 1, 2).contiguous())


def main(arguments):
    if not 1 <= len(arguments) <= 2:
        sys.exit(__doc__)
    module, scale, classes = load(arguments[0])
    if len(arguments) == 1:
        print(module)
        return
    import numpy

    for label in classify(module, scale, numpy.load(arguments[1])).argmax(1):
        print(classes[label])


if __name__ == "__main__":
    main(sys.argv[1:])
