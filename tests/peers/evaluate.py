"""A binary net evaluated in numpy from the tensors of its model file alone, with numbers instead of packed words.

Written from the documented convention, not from Bitloom's code: a set bit is -1, channel c is bit c % 64 of word c / 64
(src/core/bits.h); an output bit is set where d, the number of positions in which patch and filter differ, is at most the
threshold. Down-sampling is by OR here, heads are `hidden` or `linear`.
"""
import json

import numpy as np

WEIGHT_STEPS, HIDDEN_STEPS, HIDDEN_LIMIT = 4096, 64, 2047  # fixed point of the heads (layerwise/head.h)


def unpack(words):
    """(..., W) uint64 -> (..., 64 W) bits, least significant first."""
    return np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=-1, bitorder="little")


def patches(maps, kernel, padding):
    """(H, W, C) -> (H', W', kernel * kernel * C) in the order row, column, channel, with a border of zeros."""
    padded = np.pad(maps, ((padding, padding), (padding, padding), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), axis=(0, 1))  # (H', W', C, kernel, kernel)
    return windows.transpose(0, 1, 3, 4, 2).reshape(*windows.shape[:2], -1)


def pad_channels(bits):
    """Channels up to a multiple of 64, the tail 0."""
    return np.pad(bits, ((0, 0), (0, 0), (0, -bits.shape[2] % 64)))


class NumpyNet:
    def __init__(self, tensors, metadata):
        self.tensors = tensors
        self.net = json.loads(metadata["bitloom.net"])
        self.classes = json.loads(metadata["bitloom.classes"])

    def encode(self, image):
        """(3, H, W) bytes -> (H, W, 2 F) bits: per filter "at or above the upper" and "at or below the lower threshold"."""
        filters = self.tensors["encoder.filters"].astype(np.int64)
        half = filters.shape[1] // 2
        padded = np.pad(image.transpose(1, 2, 0).astype(np.int64), ((half, half), (half, half), (0, 0)), mode="edge")
        pixels = patches(padded, filters.shape[1], 0)
        responses = pixels @ filters.reshape(len(filters), -1).T
        if "encoder.contrast" in self.tensors:
            contrast = float(self.tensors["encoder.contrast"][0])
            taps = pixels.shape[-1]
            variance = (pixels**2).sum(axis=-1) / taps - (pixels.sum(axis=-1) / taps) ** 2
            gain = (contrast / np.sqrt(np.maximum(variance, 0) + contrast * contrast)).astype(np.float32)
            responses = np.trunc(responses.astype(np.float32) * gain[..., None]).astype(np.int64)
        thresholds = self.tensors["encoder.thresholds"]
        bits = np.stack([responses >= thresholds[:, 0], responses <= thresholds[:, 1]], axis=-1)
        return bits.reshape(*responses.shape[:2], -1).astype(np.uint8)

    def layer(self, spec, inputs):
        """The output bits (H, W, O) of one layer for its input maps."""
        smallest = min(map_.shape[0] for map_ in inputs) // (1 if spec["pool"] == "none" else 2)
        parts = []
        for map_ in inputs:
            factor = map_.shape[0] // smallest
            cells = map_.reshape(smallest, factor, map_.shape[1] // factor, factor, -1)
            parts.append(pad_channels(cells.max(axis=(1, 3))))
        taps = patches(np.concatenate(parts, axis=2), spec["kernel"], spec["padding"]).astype(np.int64)
        values = 1 - 2 * taps[:: spec["stride"], :: spec["stride"]]
        name = spec["name"]
        weights = 1 - 2 * unpack(self.tensors[name + ".sign"]).astype(np.int64)
        if spec["weights"] == "ternary":
            weights *= unpack(self.tensors[name + ".nonzero"])
        # For K weights that are not 0, dot = K - 2 d.
        dot = values @ weights.T
        disagreements = (np.abs(weights).sum(axis=1) - dot) // 2
        return (disagreements <= self.tensors[name + ".threshold"]).astype(np.uint8)

    def maps(self, image):
        """Name -> bits, of the encoder ("input") and of every layer."""
        result = {"input": self.encode(image)}
        for spec in self.net["layers"]:
            result[spec["name"]] = self.layer(spec, [result[name] for name in spec["inputs"]])
        return result

    def head(self, name, bits):
        """The logits of the head on layer `name`."""
        stage = next(stage for stage in self.net["stages"] if name in stage["heads"])
        part = {key.split(".")[-1]: value for key, value in self.tensors.items() if key.startswith(name + ".head.")}
        grid = stage["head"]["grid"]
        padded = pad_channels(bits)
        height, width, channels = padded.shape
        rows = [slice(a * height // grid, (a + 1) * height // grid) for a in range(grid)]
        columns = [slice(b * width // grid, (b + 1) * width // grid) for b in range(grid)]
        counts = np.array([padded[row, column].sum(axis=(0, 1)) for row in rows for column in columns])
        centred = counts.astype(np.int64).reshape(-1) - part["centre"]
        scale = float(part["scale"][0])
        logits = part["linear"].astype(np.int64) @ centred * scale / WEIGHT_STEPS + part["linear_bias"]
        if stage["head"]["kind"] == "hidden":
            before = centred.reshape(-1, channels) @ part["input"].astype(np.int64).T * scale / WEIGHT_STEPS
            activation = np.maximum(before + part["input_bias"], 0)
            hidden = np.minimum(np.floor(HIDDEN_STEPS * activation + 0.5), HIDDEN_LIMIT)
            logits = logits + part["output"].astype(np.int64) @ hidden.reshape(-1) / (HIDDEN_STEPS * WEIGHT_STEPS)
        return logits

    def probabilities(self, image):
        """The mean of log-probabilities over voting heads and views, as probabilities."""
        far = self.net.get("shift", 0)
        shifts = [(0, 0), (far, 0), (-far, 0), (0, far), (0, -far)] if far else [(0, 0)]
        padded = np.pad(image, ((0, 0), (far, far), (far, far)), mode="reflect") if far else image
        height, width = image.shape[1:]
        views = [padded[:, far + down:far + down + height, far + across:far + across + width] for down, across in shifts]
        if self.net["mirror"]:
            views += [view[:, :, ::-1] for view in views]
        votes = []
        for view in views:
            maps = self.maps(view)
            for name in self.net["classifier"]:
                logits = self.head(name, maps[name])
                votes.append(logits - logits.max() - np.log(np.exp(logits - logits.max()).sum()))
        score = np.exp(np.mean(votes, axis=0))
        return score / score.sum()
