#!/usr/bin/env python3
"""read_model.py MODEL FILE: the accuracy of a binary net of Bitloom on a file in CIFAR-10's binary format, in numpy alone.

Written from layerwise/FORMAT.md, whose section numbers are in comments."""
import json
import struct
import sys

import numpy as np

TYPES, F32 = {"U32": "<u4", "U64": "<u8", "I16": "<i2", "I32": "<i4", "F32": "<f4"}, np.float32
POOLS = {  # of (N, H, f, W, f, C)
    **dict.fromkeys(("none", "or"), lambda cells: cells.max(axis=(2, 4))),
    "and": lambda cells: cells.min(axis=(2, 4)),
    "majority": lambda cells: 2 * cells.sum(axis=(2, 4), dtype=int) > cells.shape[2] ** 2,
    "space_to_depth": lambda cells: cells.transpose(0, 1, 3, 2, 4, 5).reshape(*cells.shape[:2], cells.shape[3], -1),
}


def read_file(path):
    """Tensors and metadata (section 1)."""
    with open(path, "rb") as file:
        header, data = json.loads(file.read(struct.unpack("<Q", file.read(8))[0])), file.read()
    metadata = header.pop("__metadata__")
    return {name: np.frombuffer(data[slice(*entry["data_offsets"])], TYPES[entry["dtype"]]).reshape(entry["shape"])
            for name, entry in header.items()}, metadata


def bits_of(words):
    """(..., W) words -> (..., 64 W) bits, least significant first (section 2)."""
    return np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=-1, bitorder="little")


def whole_words(maps):
    """Channels up to a multiple of 64."""
    return np.pad(maps, ((0, 0), (0, 0), (0, 0), (0, -maps.shape[3] % 64)))


def windows(maps, kernel, padding):
    """(N, H, W, C) -> (N, H', W', kernel * kernel * C), in the order row, column, channel; a border of zeros."""
    padded = np.pad(maps, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    view = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), axis=(1, 2))  # (N, H', W', C, kernel, kernel)
    return view.transpose(0, 1, 2, 4, 5, 3).reshape(*view.shape[:3], -1)


class Model:
    def __init__(self, path):
        self.tensors, metadata = read_file(path)
        if metadata.get("bitloom.format") not in ("binary 1", "binary 2"):
            raise SystemExit(f"{path}: expected 'binary 1' or 'binary 2' as format, not '{metadata.get('bitloom.format')}'")
        for name in [name[:-5] for name in self.tensors if name.endswith("_step")]:  # weights of few bits (section 6)
            planes = bits_of(self.tensors[name])  # (rows, bits, columns)
            multiples = np.tensordot(planes, 1 << np.arange(planes.shape[1]), axes=(1, 0)) - 2 ** (planes.shape[1] - 1)
            self.tensors[name] = multiples * self.tensors[name + "_step"].astype(int)[:, None]
        self.net = json.loads(metadata["bitloom.net"])
        self.thresholds = {layer["name"]: layer.get("thresholds", 1) for layer in self.net["layers"]}
        self.classes = json.loads(metadata["bitloom.classes"])
        self.image_shape = tuple(int(n) for n in self.tensors["encoder.image_shape"])  # height, width, colours

    def encode(self, images):
        """(N, colours, H, W) bytes -> (N, H, W, 2 F) bits (section 4)."""
        filters, half = self.tensors["encoder.filters"], self.tensors["encoder.filters"].shape[1] // 2
        pixels = np.pad(images.transpose(0, 2, 3, 1), ((0, 0), (half, half), (half, half), (0, 0)), mode="edge")
        taps = windows(pixels, filters.shape[1], 0).astype(np.float64)  # integers below 2^53: sums are exact
        responses = taps @ filters.reshape(len(filters), -1).T.astype(np.float64)
        if "encoder.contrast" in self.tensors:
            contrast, n = float(self.tensors["encoder.contrast"][0]), taps.shape[-1]
            variance = np.maximum((taps * taps).sum(axis=-1) / n - np.square(taps.sum(axis=-1) / n), 0)
            gain = (contrast / np.sqrt(variance + contrast * contrast)).astype(F32)
            responses = np.trunc(responses.astype(F32) * gain[..., None])
        upper, lower = self.tensors["encoder.thresholds"].T
        return np.stack([responses >= upper, responses <= lower], axis=-1).reshape(*responses.shape[:3], -1).astype(np.uint8)

    def layer(self, spec, inputs):
        """The output bits (N, H, W, O) of a layer (section 5)."""
        height = min(map_.shape[1] for map_ in inputs) // (1 if spec["pool"] == "none" else 2)
        parts, planes_of = [], []  # inputs as numbers of set bits, and of how many planes
        for name, map_ in zip(spec["inputs"], inputs):
            f, planes = map_.shape[1] // height, np.split(map_, self.thresholds.get(name, 1), axis=3)
            cells = [whole_words(plane).reshape(len(map_), height, f, map_.shape[2] // f, f, -1) for plane in planes]
            parts.append(np.sum([POOLS[spec["pool"]](cell) for cell in cells], axis=0, dtype=np.uint8))
            planes_of += parts[-1].shape[3] * [len(planes)]
        taps = windows(np.concatenate(parts, axis=3), spec["kernel"], spec["padding"])[:, ::spec["stride"], ::spec["stride"]]
        sign = bits_of(self.tensors[spec["name"] + ".sign"])
        care = bits_of(self.tensors[spec["name"] + ".nonzero"]) if spec["weights"] == "ternary" else np.ones_like(sign)
        # x xor w = x + w - 2 x w; float32 holds these integers exactly, and multiplies fast.
        differ = taps.astype(F32) @ (care * (1 - 2 * sign.astype(F32))).T
        differ += (sign & care) @ np.tile(F32(planes_of), spec["kernel"] ** 2)
        return (np.tile(differ, spec.get("thresholds", 1)) <= self.tensors[spec["name"] + ".threshold"]).astype(np.uint8)

    def head(self, name, bits):
        """The logits (N, L) of the head on layer `name` (section 6)."""
        spec = next(stage["head"] for stage in self.net["stages"] if name in stage["heads"])
        part = {key.rsplit(".", 1)[1]: value for key, value in self.tensors.items() if key.startswith(name + ".head.")}
        n, height, width, channels = (bits := whole_words(bits)).shape
        if spec["kind"] == "class_conv":
            k = range(-(spec["kernel"] // 2), spec["kernel"] // 2 + 1)
            areas = [bits[:, max(y, 0):height + min(y, 0), max(x, 0):width + min(x, 0)] for y in k for x in k]
        else:
            g = spec["grid"]
            rows, columns = ([slice(a * size // g, (a + 1) * size // g) for a in range(g)] for size in (height, width))
            areas = [bits[:, row, column] for row in rows for column in columns]
        counts = np.stack([area.sum(axis=(1, 2), dtype=np.int64) for area in areas], axis=1).reshape(n, -1)
        centred = (counts - part["centre"]).astype(np.float64)
        scale, linear, unit = part["scale"][0], part.get("linear"), part["scale"][0] / F32(4096)
        if spec["kind"] == "class_conv":
            gain = np.clip(part["gain"][0] * F32(16384), F32(-32767), F32(32767))
            signs = 1 - 2 * bits_of(part["class_conv"])[:, :centred.shape[1]].astype(np.float64)
            linear, unit = np.trunc(gain + np.copysign(F32(0.5), gain)) * signs, scale / F32(16384)
        logits = (centred @ linear.T).astype(F32) * unit  # sums of integers, exact
        if spec["kind"] == "hidden":
            before = (centred.reshape(-1, channels) @ part["input"].T.astype(np.float64)).astype(F32) * (scale / F32(4096))
            active = np.minimum(np.maximum(before + part["input_bias"], F32(0)) * F32(64), F32(2047))
            hidden = np.trunc(active + F32(0.5)).astype(np.float64).reshape(n, -1)
            logits = logits + (hidden @ part["output"][:, :hidden.shape[1]].T.astype(np.float64)).astype(F32) * F32(1 / (64 * 4096))
        return logits + part["linear_bias"]

    def maps(self, images):
        """Bits by layer; "input" is the encoder."""
        result = {"input": self.encode(images)}
        for spec in self.net["layers"]:
            result[spec["name"]] = self.layer(spec, [result[name] for name in spec["inputs"]])
        return result

    def scores(self, images):
        """(N, L): mean log-probabilities over heads and forms of the image, until it is sure (section 7)."""
        far, (height, width), sure = self.net.get("shift", 0), images.shape[2:], self.net.get("sure", 1)
        padded = np.pad(images, ((0, 0), (0, 0), (far, far), (far, far)), mode="reflect")
        votes = []
        for down, across in [(0, 0), (far, 0), (-far, 0), (0, far), (0, -far)][:5 if far else 1]:
            moved = padded[:, :, far + down:far + down + height, far + across:far + across + width]
            for seen in [moved, moved[..., ::-1]][:2 if self.net["mirror"] else 1]:
                maps = self.maps(seen)
                for name in self.net["classifier"]:
                    logits = self.head(name, maps[name]).astype(np.float64)
                    votes.append((logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)).astype(F32))
        means = np.cumsum(votes, axis=0, dtype=F32) / np.arange(1, len(votes) + 1, dtype=F32)[:, None, None]
        means = means[len(self.net["classifier"]) - 1::len(self.net["classifier"])]  # by form: (forms, N, L)
        doubt = np.logaddexp.reduce(means.astype(np.float64), axis=2) - means.max(axis=2)
        ends = (doubt <= F32(-np.log(np.float64(F32(sure))))) & (sure < 1) | (np.arange(len(means)) == len(means) - 1)[:, None]
        return means[ends.argmax(axis=0), np.arange(len(images))]


if __name__ == "__main__":
    model = Model(sys.argv[1])
    height, width, colours = model.image_shape
    records = np.fromfile(sys.argv[2], np.uint8).reshape(-1, 1 + colours * height * width)  # a byte of label, then the planes
    batches = np.array_split(records[:, 1:].reshape(-1, colours, height, width), -(-len(records) // 64))
    right = (np.concatenate([model.scores(images).argmax(axis=1) for images in batches]) == records[:, 0]).sum()
    print(f"accuracy {100 * right / len(records):.2f}% ({right} of {len(records)} images)")
