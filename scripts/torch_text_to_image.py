#!/usr/bin/env python3
"""PyTorch's twins of Bitloom's nets of images with captions: the encoder and the decoder of a discrete VAE, a text-to-image
transformer, a contrastive model. Their state_dicts have the names that `bitloom export` writes; those of the discrete VAE are
the names of openai/DALL-E's modules, too. `load(FILE)` reads an export.

torch_text_to_image.py EXPORTED.safetensors: loads an export and prints its layers.
torch_text_to_image.py convert ENCODER.pkl DECODER.pkl FOLDER: writes the weights of modules that torch.save() pickled, such as
the published ones of openai/DALL-E, as FOLDER/encoder.safetensors and FOLDER/decoder.safetensors, which `bitloom import dvae`
reads. Unpickling runs code: convert files that you trust. Needs torch and safetensors, and what the pickles are made of (the
package DALL-E, for the published ones).
"""
import json
import math
import pathlib
import sys

import torch
from torch import nn
from torch.nn import functional

import torch_cnn

PIXEL_MARGIN = 0.1  # epsilon of Ramesh et al. 2021, equation 3


class Conv(nn.Module):
    """A convolution that keeps the size of maps; weights begin with the deviation 1 / sqrt(inputs kernel^2)."""

    def __init__(self, inputs, outputs, kernel):
        super().__init__()
        self.kernel = kernel
        self.w = nn.Parameter(torch.randn(outputs, inputs, kernel, kernel) / math.sqrt(inputs * kernel**2))
        self.b = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return functional.conv2d(x, self.w, self.b, padding=(self.kernel - 1) // 2)


class Bottleneck(nn.Module):
    """Four convolutions on a quarter of the channels; what they add is divided by the square of the number of blocks."""

    def __init__(self, inputs, outputs, kernels, blocks):
        super().__init__()
        self.gain = 1 / blocks**2
        self.id_path = Conv(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        self.res_path = nn.Sequential()
        width = outputs // 4
        for i, kernel in enumerate(kernels, 1):
            self.res_path.add_module(f"relu_{i}", nn.ReLU())
            self.res_path.add_module(
                f"conv_{i}", Conv(inputs if i == 1 else width, outputs if i == len(kernels) else width, kernel))

    def forward(self, x):
        return self.id_path(x) + self.gain * self.res_path(x)


def half(first, channels, widths, kernels, between, last, blocks):
    """The layers of an encoder or decoder: `first`, groups of `blocks` blocks of these widths with `between` between two of
    them, and `last`."""
    layers = nn.Sequential()
    layers.add_module("input", first)
    for number, width in enumerate(widths, 1):
        group = nn.Sequential()
        for block in range(1, blocks + 1):
            group.add_module(f"block_{block}", Bottleneck(channels, width, kernels, blocks * len(widths)))
            channels = width
        if number < len(widths):
            group.add_module(*between)
        layers.add_module(f"group_{number}", group)
    output = nn.Sequential()
    output.add_module("relu", nn.ReLU())
    output.add_module("conv", last)
    layers.add_module("output", output)
    return layers


class Encoder(nn.Module):
    """Images (N, 3, side, side), by map_pixels, to logits (N, codes, grid, grid)."""

    def __init__(self, config):
        super().__init__()
        widths = [config["hidden"] << group for group in range(config["groups"])]
        self.blocks = half(Conv(3, config["hidden"], 7), config["hidden"], widths, (3, 3, 3, 1), ("pool", nn.MaxPool2d(2)),
                           Conv(widths[-1], config["codes"], 1), config["blocks"])

    def forward(self, x):
        return self.blocks(x)


class Decoder(nn.Module):
    """Codes, one-hot or mixed (N, codes, grid, grid), to maps (N, 6, side, side): mu of three channels, ln b of three."""

    def __init__(self, config):
        super().__init__()
        widths = [config["hidden"] << group for group in reversed(range(config["groups"]))]
        self.blocks = half(Conv(config["codes"], config["init"], 1), config["init"], widths, (1, 3, 3, 3),
                           ("upsample", nn.Upsample(scale_factor=2, mode="nearest")), Conv(widths[-1], 6, 1), config["blocks"])

    def forward(self, x):
        return self.blocks(x)


def map_pixels(images):
    """Bytes (N, side, side, 3), a numpy array, as the encoder takes them: phi of Ramesh et al. 2021, equation 3."""
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    return (1 - 2 * PIXEL_MARGIN) * pixels + PIXEL_MARGIN


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)

    def forward(self, x, mask):
        batch, tokens, width = x.shape
        q, k, v = (part.view(batch, tokens, self.heads, -1).transpose(1, 2)
                   for part in self.qkv(self.norm(x)).split(width, 2))
        scores = q @ k.transpose(2, 3) / math.sqrt(width // self.heads)
        mixed = scores.masked_fill(~mask, float("-inf")).softmax(3) @ v
        return self.projection(mixed.transpose(1, 2).reshape(batch, tokens, width))


class FeedForward(nn.Module):
    def __init__(self, width, activation):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first = nn.Linear(width, 4 * width)
        self.activation = torch_cnn.ACTIVATIONS[activation]()
        self.second = nn.Linear(4 * width, width)

    def forward(self, x):
        return self.second(self.activation(self.first(self.norm(x))))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attention = Attention(config["width"], config["heads"])
        self.feed_forward = FeedForward(config["width"], config.get("activation", "gelu_tanh"))

    def forward(self, x, mask):
        x = x + self.attention(x, mask)
        return x + self.feed_forward(x)


def image_mask(kind, text, grid, extent):
    """(T, T): what each token sees. Text is causal; image tokens, in raster order, see all text and, of the image, themselves
    and what the kind says of those before (Ramesh et al. 2021, figure 11)."""
    size = grid * grid
    query, key = torch.arange(size)[:, None], torch.arange(size)[None, :]
    back = query - key  # in raster order
    if kind == "row":
        seen = back <= grid
    elif kind == "column":
        seen = query % grid == key % grid
    else:
        # A window around the query by offsets in raster order, which at a border goes on in the row beside it.
        reach = extent // 2
        offsets = {rows * grid + columns for rows in range(reach + 1) for columns in range(-reach, reach + 1)}
        seen = torch.zeros(size, size, dtype=torch.bool)
        for offset in offsets:
            seen |= back == offset
    mask = torch.ones(text + size, text + size, dtype=torch.bool).tril()
    mask[text:, text:] &= seen
    return mask


class Dalle(nn.Module):
    """Tokens of texts (N, text), -1 behind their ends, and codes (N, grid * grid) to logits (N, text - 1, vocabulary) of all
    text tokens but the first, and (N, grid * grid, codes) of codes."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        width, self.text, self.grid = config["width"], config["text_positions"], config["grid"]
        inputs = config["text_vocabulary"] + self.text + config["codes"]
        tables = {"inputs": inputs, "text": self.text, "rows": self.grid, "columns": self.grid}
        self.embedding = nn.ModuleDict({name: nn.Embedding(rows, width) for name, rows in tables.items()})
        self.blocks = nn.ModuleList(Block(config) for _ in range(config["layers"]))
        self.norm = nn.LayerNorm(width)
        self.head = nn.ModuleDict({"text": nn.Linear(width, config["text_vocabulary"], bias=False),
                                   "codes": nn.Linear(width, config["codes"], bias=False)})

    def mask_of(self, layer):
        largest = self.grid - (self.grid % 2 == 0)
        kind = "convolutional" if layer + 1 == len(self.blocks) else "column" if (layer - 1) % 4 == 0 else "row"
        return image_mask(kind, self.text, self.grid, min(self.config["extent"], largest))

    def forward(self, text, codes):
        vocabulary, positions = self.config["text_vocabulary"], torch.arange(self.text)
        text = torch.where(text < 0, vocabulary + positions, text)  # each position has padding of its own
        raster = torch.arange(self.grid**2)
        of_text = self.embedding["inputs"](text) + self.embedding["text"](positions)
        of_image = (self.embedding["inputs"](vocabulary + self.text + codes) + self.embedding["rows"](raster // self.grid)
                    + self.embedding["columns"](raster % self.grid))
        x = torch.cat([of_text, of_image], 1)
        for layer, block in enumerate(self.blocks):
            x = block(x, self.mask_of(layer))
        x = self.norm(x)
        return self.head["text"](x[:, :self.text - 1]), self.head["codes"](x[:, self.text - 1:-1])


class Clip(nn.Module):
    """Images (N, side, side, 3), bytes as a numpy array, and inputs (N, text) of texts to similarities (N, N) of images (rows)
    and texts."""

    def __init__(self, config):
        super().__init__()
        width, embedding = config["width"], config["image"]["classes"]
        self.layers = torch_cnn.Net(config["image"]).layers
        self.embedding = nn.ModuleDict({"tokens": nn.Embedding(config["text_vocabulary"] + 2, width),
                                        "positions": nn.Embedding(config["text_positions"], width)})
        self.blocks = nn.ModuleList(Block(config) for _ in range(config["layers"]))
        self.norm = nn.LayerNorm(width)
        self.projection = nn.Linear(width, embedding, bias=False)
        self.log_scale = nn.Parameter(torch.tensor([math.log(1 / 0.07)]))

    def embed_images(self, images):
        pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float()
        return functional.normalize(self.layers((pixels / 255 - 0.5) * 4), dim=1)

    def embed_texts(self, texts):
        positions = torch.arange(texts.shape[1])
        x = self.embedding["tokens"](texts) + self.embedding["positions"](positions)
        mask = torch.ones(len(positions), len(positions), dtype=torch.bool)
        for block in self.blocks:
            x = block(x, mask)
        return functional.normalize(self.projection(self.norm(x)[:, 0]), dim=1)

    def forward(self, images, texts):
        return self.log_scale.clamp(max=math.log(100)).exp() * self.embed_images(images) @ self.embed_texts(texts).T


# By "bitloom.kind" in the metadata.
MODULES = {"dalle": lambda config, part: Dalle(config), "clip": lambda config, part: Clip(config),
           "dvae": lambda config, part: (Encoder if part == "encoder" else Decoder)(config)}


def load(path):
    """The module in evaluation mode. Whether a file of a discrete VAE has its encoder or decoder its shapes say."""
    import safetensors.torch

    with safetensors.safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    state = safetensors.torch.load_file(path)
    state.pop("tokenizer", None)
    config = json.loads(metadata["bitloom.config"])
    part = "encoder" if "blocks.input.w" in state and state["blocks.input.w"].shape[2] == 7 else "decoder"
    module = MODULES[metadata["bitloom.kind"]](config, part)
    missing, unexpected = module.load_state_dict(state, strict=False)
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    if missing or unexpected:
        raise ValueError(f"{path}: without {missing}, with {unexpected}")
    return module.eval()


def convert(encoder, decoder, folder):
    import safetensors.torch

    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for path, name in ((encoder, "encoder"), (decoder, "decoder")):
        module = torch.load(path, map_location="cpu", weights_only=False)
        state = {key: value.contiguous() for key, value in module.state_dict().items()}
        safetensors.torch.save_file(state, folder / f"{name}.safetensors")


def main(arguments):
    if len(arguments) == 4 and arguments[0] == "convert":
        convert(*arguments[1:])
    elif len(arguments) == 1:
        print(load(arguments[0]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
