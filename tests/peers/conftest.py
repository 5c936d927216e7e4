"""What the peer tests share: the program, a small trained model, images of the data it was trained on, GPTs."""
import json
import os
import pathlib
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from gpts import CONTEXT, TEXT, TRAINED, model

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))  # read_model


def write_png(path, image):
    """image: (3, height, width) bytes, as 8-bit RGB (PNG specification, chapter 5; every row with filter 0)."""
    _, height, width = image.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # each row begins with its filter type, 0
    rows[:, 1:] = image.transpose(1, 2, 0).reshape(height, 3 * width)

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows.tobytes())) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)


class Program:
    """Bitloom's program, run in a folder of its own."""

    def __init__(self, path, folder):
        self.path, self.folder = path, folder

    def __call__(self, *arguments):
        environment = dict(os.environ, XDG_CACHE_HOME=str(self.folder / "cache"))
        return subprocess.run([str(self.path), *map(str, arguments)], cwd=self.folder, env=environment, capture_output=True,
                              text=True, timeout=300, check=False)

    def lines_of_json(self, *arguments):
        done = self(*arguments)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="session")
def bitloom(tmp_path_factory):
    path = pathlib.Path(os.environ.get("BITLOOM_PROGRAM", ROOT / "build/release/bin/bitloom")).resolve()
    assert path.is_file(), f"{path} is missing: build it, or set BITLOOM_PROGRAM"
    return Program(path, tmp_path_factory.mktemp("peers"))


def train(bitloom, name, *options, data="synth", net="tiny"):
    """The model file of a short run, by default on synthetic images."""
    done = bitloom("train", "binary", "--net", net, "--data", data, "--max-train", 300, "--max-test", 20,
                   "--validation", 0, "--epochs", 1, "--batch", 32, "--seed", 1, "--cache", "none", "--out", name, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return bitloom.folder / name / "model.safetensors"


@pytest.fixture(scope="session")
def model_file(bitloom):
    return train(bitloom, "run")


@pytest.fixture(scope="session")
def ternary_model_file(bitloom):
    """Ternary weights, channels that do not fill their words, heads without hidden units, the other encoder."""
    settings = ["layer1.weights=ternary", "layer2.weights=ternary", "layer1.width=80", "layer2.width=80", "head.kind=linear",
                "encoder.kind=thermometer"]
    return train(bitloom, "ternary", *(part for setting in settings for part in ("--set", setting)))


@pytest.fixture(scope="session")
def images(bitloom):
    """(N, 3, 32, 32) bytes and their PNG files."""
    done = bitloom("data", "synth", "--out", "images", "--train", 5, "--test", 8)
    assert done.returncode == 0, done.stderr
    # CIFAR-10's binary version: per image one byte of label, then the three planes.
    records = np.fromfile(bitloom.folder / "images" / "test_batch.bin", np.uint8).reshape(-1, 3073)
    pixels = records[:, 1:].reshape(-1, 3, 32, 32)
    files = [bitloom.folder / f"image{i}.png" for i in range(len(pixels))]
    for file, image in zip(files, pixels):
        write_png(file, image)
    return pixels, files


@pytest.fixture(scope="session")
def byte_model(bitloom):
    return model(bitloom, "of-bytes", "bytes", 257)


@pytest.fixture(scope="session")
def gpt2_tokenizer(bitloom):
    import tokenizers

    (bitloom.folder / "gpt.txt").write_text(TEXT * 20, encoding="utf-8")
    theirs = tokenizers.ByteLevelBPETokenizer()
    theirs.train(files=[str(bitloom.folder / "gpt.txt")], vocab_size=330, min_frequency=2, special_tokens=["<|endoftext|>"])
    folder = bitloom.folder / "gpt-gpt2"
    folder.mkdir()
    theirs.save_model(str(folder))
    return folder


@pytest.fixture(scope="session")
def gpt2_model(bitloom, gpt2_tokenizer):
    return model(bitloom, "of-gpt2", gpt2_tokenizer, len(json.loads((gpt2_tokenizer / "vocab.json").read_text("utf-8"))))


@pytest.fixture(scope="session")
def sentencepiece_model(bitloom):
    (bitloom.folder / "gpt-lines.txt").write_text(TEXT * 20, encoding="utf-8")
    done = bitloom("tokenizer", "train", "--input", "gpt-lines.txt", "--vocabulary", 330, "--out", "gpt-pieces")
    assert done.returncode == 0, done.stderr
    return model(bitloom, "of-pieces", "gpt-pieces", 330)


@pytest.fixture(scope="session")
def trained_gpts(bitloom, gpt2_tokenizer, sentencepiece_model):
    """Runs that know TEXT, by tokenizer."""
    for name, tokenizer in TRAINED.items():
        done = bitloom("train", "gpt", "--data", "gpt.txt", "--tokenizer", tokenizer, "--layers", 2, "--heads", 2, "--width", 64,
                       "--context", CONTEXT, "--batch", 8, "--steps", 150, "--learning-rate", 3e-3, "--dropout", 0,
                       "--out", f"gpt-run-{name}")
        assert done.returncode == 0, done.stderr
    return {name: f"gpt-run-{name}" for name in TRAINED}
