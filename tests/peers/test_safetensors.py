"""The model file, opened with Python's safetensors: what is in it, and that it alone determines the classes."""
import json

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from read_model import Model, bits_of

MODELS = ["model_file", "ternary_model_file"]


def read(path):
    with safetensors.safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()


def write(path, tensors, metadata):
    safetensors.numpy.save_file(tensors, path, metadata)
    return path


@pytest.mark.parametrize("which", MODELS)
def test_tensors_have_the_documented_types_and_shapes(request, which):
    tensors, metadata = read(request.getfixturevalue(which))
    assert metadata["bitloom.format"] == "binary 2"
    assert len(json.loads(metadata["bitloom.classes"])) == 10
    net = json.loads(metadata["bitloom.net"])
    filters = tensors["encoder.filters"]
    assert filters.dtype == np.int16 and filters.shape[1] == filters.shape[2] and filters.shape[3] == 3
    assert tensors["encoder.thresholds"].dtype == np.int32 and tensors["encoder.thresholds"].shape == (len(filters), 2)
    channels = {"input": 2 * len(filters)}
    for layer in net["layers"]:
        name, width = layer["name"], layer["width"]
        words = layer["kernel"] ** 2 * sum(-(-channels[source] // 64) for source in layer["inputs"])
        sign = tensors[name + ".sign"]
        assert sign.dtype == np.uint64 and sign.shape == (width, words)
        assert tensors[name + ".threshold"].dtype == np.int32 and tensors[name + ".threshold"].shape == (width,)
        assert (name + ".nonzero" in tensors) == (layer["weights"] == "ternary")
        channels[name] = width
    for name in net["classifier"]:
        head = {key: value for key, value in tensors.items() if key.startswith(name + ".head.")}
        assert head and {value.dtype for value in head.values()} <= {np.dtype(np.int16), np.dtype(np.float32), np.dtype(np.uint64)}
        for key in [key for key in head if key.endswith("_step")]:  # weights of 4 bits
            rows, planes, _ = head[key.removesuffix("_step")].shape
            assert planes == 4 and head[key].shape == (rows,) and head[key].min() > 0
        assert any(key.endswith("linear_step") for key in head)


@pytest.mark.parametrize("which", MODELS)
def test_bits_without_a_weight_are_zero(request, which):
    tensors, metadata = read(request.getfixturevalue(which))
    net = json.loads(metadata["bitloom.net"])
    channels = {"input": 2 * len(tensors["encoder.filters"])}
    tails = 0
    for layer in net["layers"]:
        name = layer["name"]
        pixel = np.concatenate([np.arange(-(-channels[source] // 64) * 64) < channels[source] for source in layer["inputs"]])
        valid = np.tile(pixel, layer["kernel"] ** 2)
        sign = bits_of(tensors[name + ".sign"])
        assert 0.2 < sign[:, valid].mean() < 0.8 or layer["weights"] == "ternary"
        assert sign[:, valid].any()
        assert not sign[:, ~valid].any()
        if layer["weights"] == "ternary":
            nonzero = bits_of(tensors[name + ".nonzero"])
            assert nonzero[:, valid].any() and not nonzero[:, valid].all()
            assert not nonzero[:, ~valid].any()
            assert not (sign & ~nonzero & 1).any()
        tails += np.count_nonzero(~valid)
        channels[name] = layer["width"]
    assert (tails > 0) == (which == "ternary_model_file")  # whose first layer has 80 channels


@pytest.mark.parametrize("which", MODELS)
def test_numpy_predicts_what_bitloom_predicts(request, bitloom, images, which):
    path = request.getfixturevalue(which)
    net = Model(path)
    pixels, files = images
    expected_all = np.exp(net.scores(pixels))
    predictions = bitloom.lines_of_json("predict", path, *files, "--jsonl")
    assert [prediction["file"] for prediction in predictions] == [str(file) for file in files]
    for expected, prediction in zip(expected_all / expected_all.sum(axis=1, keepdims=True), predictions):
        actual = prediction["probabilities"]
        assert prediction["class"] == net.classes[int(np.argmax(expected))]
        assert [actual[name] for name in net.classes] == pytest.approx(list(expected), abs=1e-4)
    # Else the test could not tell one evaluation from another.
    assert len({round(max(prediction["probabilities"].values()), 4) for prediction in predictions}) > len(predictions) // 2


def test_layers_let_some_bits_through(model_file, images):
    for name, bits in Model(model_file).maps(images[0][:1]).items():
        assert 0.01 < bits.mean() < 0.9, name


@pytest.mark.parametrize("command", ["predict", "eval", "inspect"])
def test_a_file_of_another_program_is_refused(bitloom, images, command):
    path = write(bitloom.folder / "foreign.safetensors", {"weight": np.ones((4, 4), np.float32)}, {"format": "pt"})
    more = {"predict": [images[1][0]], "eval": ["--data", "synth"], "inspect": []}
    done = bitloom(command, path, *more[command])
    assert done.returncode == 3, done.stderr
    assert "not a Bitloom model" in done.stderr and "foreign.safetensors" in done.stderr


def test_a_model_of_another_version_is_refused(bitloom, model_file, images):
    tensors, metadata = read(model_file)
    del metadata["bitloom.xxh3"]
    path = write(bitloom.folder / "newer.safetensors", tensors, {**metadata, "bitloom.format": "binary 999"})
    done = bitloom("predict", path, images[1][0])
    assert done.returncode == 3, done.stderr
    assert "binary 999" in done.stderr


def test_a_changed_weight_is_found_by_the_checksum(bitloom, model_file, images):
    tensors, metadata = read(model_file)
    assert "bitloom.xxh3" in metadata
    same = write(bitloom.folder / "same.safetensors", tensors, metadata)
    assert bitloom("predict", same, images[1][0]).returncode == 0
    tensors["layer1.sign"] = tensors["layer1.sign"].copy()
    tensors["layer1.sign"][0, 0] ^= np.uint64(1)
    changed = write(bitloom.folder / "changed.safetensors", tensors, metadata)
    done = bitloom("predict", changed, images[1][0])
    assert done.returncode == 3, done.stderr
    assert "checksum" in done.stderr
