"""scripts/read_model.py, written from layerwise/FORMAT.md alone, is as right as `bitloom eval`, image by image."""
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT, train
from read_model import Model

SETTINGS = {
    "hidden": [],
    "class_conv": ["head.kind=class_conv", "layer2.pool=majority", "net.mirror=false"],
    "ternary": ["layer1.weights=ternary", "layer2.weights=ternary", "layer1.width=80", "head.kind=linear", "head.grid=3",
                "encoder.kind=thermometer", "layer2.pool=and"],
    "16 bits in heads": ["net.head_bits=16"],
    "5 bits in heads": ["net.head_bits=5", "head.hidden=16", "head.grid=1"],
    "thresholds": ["layer1.thresholds=2", "layer2.thresholds=3", "layer2.weights=ternary"],
    "thresholds in depth": ["layer1.width=40", "layer1.thresholds=3", "layer2.pool=space_to_depth"],
    "sure": ["net.shift=1", "net.sure=0.2"],
    "shifted": ["net.shift=2", "layer2.pool=space_to_depth", "layer2.stride=2", "layer2.kernel=5", "encoder.contrast=0"],
}


def records_of(bitloom, data, count):
    return np.fromfile(pathlib.Path(bitloom.folder, data) / "test_batch.bin", np.uint8).reshape(-1, 3073)[:count]


def confusion(model, records):
    """(classes, classes): rows true, columns predicted."""
    height, width, colours = model.image_shape
    table = np.zeros((len(model.classes),) * 2, int)
    for part in np.array_split(records, -(-len(records) // 64)):
        np.add.at(table, (part[:, 0], model.scores(part[:, 1:].reshape(-1, colours, height, width)).argmax(axis=1)), 1)
    return table


def compare(bitloom, path, data, count):
    done = bitloom("eval", path, "--data", data, "--max-test", count, "--json")
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout)
    ours = confusion(Model(path), records_of(bitloom, data, count))
    assert ours.sum() == count and (ours.sum(axis=0) > 0).sum() > 2, "the classes say nothing"
    assert ours.tolist() == np.reshape(theirs["confusion"], ours.shape).tolist()
    assert np.trace(ours) / count == pytest.approx(theirs["accuracy"], abs=1e-9)


@pytest.fixture(scope="module")
def shapes(bitloom):
    assert bitloom("data", "synth", "--out", "shapes", "--train", 100, "--test", 150).returncode == 0
    return "shapes"


@pytest.mark.parametrize("which", SETTINGS)
def test_generated_images(bitloom, shapes, which):
    options = [part for setting in SETTINGS[which] for part in ("--set", setting)]
    path = train(bitloom, "read-" + which, *options)
    compare(bitloom, path, shapes, 150)
    if which == "sure":  # of some images, not of all, there are fewer views than ten
        model, images = Model(path), records_of(bitloom, shapes, 150)[:, 1:].reshape(-1, 3, 32, 32)
        until_sure = model.scores(images)
        del model.net["sure"]
        assert 0 < (until_sure != model.scores(images)).any(axis=1).sum() < 150


def test_length():
    assert len((ROOT / "scripts/read_model.py").read_text(encoding="utf-8").splitlines()) <= 150


def test_images_of_cifar10(bitloom):
    if "BITLOOM_DATA" not in os.environ:
        pytest.skip("BITLOOM_DATA is not set")
    data = pathlib.Path(os.environ["BITLOOM_DATA"]) / "cifar-10-batches-bin"
    compare(bitloom, train(bitloom, "read-cifar", data=data), data, 300)


def test_the_script_prints_the_accuracy(bitloom, shapes, model_file):
    done = subprocess.run([sys.executable, ROOT / "scripts/read_model.py", model_file, bitloom.folder / shapes / "test_batch.bin"],
                          capture_output=True, text=True, check=True)
    theirs = json.loads(bitloom("eval", model_file, "--data", shapes, "--max-test", 150, "--json").stdout)
    assert f"accuracy {100 * theirs['accuracy']:.2f}% " in done.stdout and "of 150 images" in done.stdout
