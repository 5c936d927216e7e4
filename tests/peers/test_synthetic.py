"""The built-in data set is what it promises: too hard for a linear model on pixels, and learnable for a good net."""
import json

import numpy as np


def read(file):
    """(N, 3072) floats and N labels of a file in CIFAR-10's binary version."""
    records = np.fromfile(file, np.uint8).reshape(-1, 3073)
    return records[:, 1:].astype(np.float32) / 255, records[:, 0].astype(np.int64)


def linear_accuracies(train, test, steps=200):
    """Multinomial logistic regression on standardised pixels, whole batch with momentum: its accuracy on the training images, and
    its best test accuracy on the way."""
    (x, y), (x_test, y_test) = train, test
    mean, scale = x.mean(0), x.std(0) + 1e-3
    x, x_test = (x - mean) / scale, (x_test - mean) / scale
    weights = np.zeros((x.shape[1] + 1, 10), np.float32)
    velocity = np.zeros_like(weights)
    x = np.hstack([x, np.ones((len(x), 1), np.float32)])
    x_test = np.hstack([x_test, np.ones((len(x_test), 1), np.float32)])
    targets = np.eye(10, dtype=np.float32)[y]
    best = 0.0
    for step in range(steps):
        logits = x @ weights
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        velocity = 0.9 * velocity - 0.003 * (x.T @ (p - targets) / len(x))
        weights += velocity
        if step % 10 == 9:
            best = max(best, float((np.argmax(x_test @ weights, 1) == y_test).mean()))
    return float((np.argmax(x @ weights, 1) == y).mean()), best


def test_a_linear_model_fails_and_a_net_succeeds(bitloom):
    done = bitloom("data", "synth", "--out", "synthetic")
    assert done.returncode == 0, done.stderr
    folder = bitloom.folder / "synthetic"
    parts = [read(folder / f"data_batch_{i}.bin") for i in range(1, 6)]
    train = np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])
    fitted, linear = linear_accuracies(train, read(folder / "test_batch.bin"))
    assert fitted > 0.25, f"the linear model did not learn: {fitted:.3f} of the training images"
    assert linear < 0.5, f"linear: {linear:.3f}"

    done = bitloom("train", "binary", "--net", "cifar-small", "--data", "synthetic", "--epochs", 8, "--validation", 0,
                   "--cache", "none", "--out", "good")
    assert done.returncode == 0, done.stdout + done.stderr
    measured = bitloom("eval", "good", "--json")
    assert measured.returncode == 0, measured.stderr
    accuracy = json.loads(measured.stdout)["accuracy"]
    assert accuracy > 0.9, f"net: {accuracy:.3f}, linear: {linear:.3f}"


def test_files_hold_what_the_name_synth_stands_for(bitloom):
    """`--data synth` and the files of `data synth` train the same net."""
    models = []
    assert bitloom("data", "synth", "--out", "written").returncode == 0
    for name, data in (("from-name", "synth"), ("from-files", "written")):
        done = bitloom("train", "binary", "--net", "tiny", "--data", data, "--max-train", 300, "--max-test", 20, "--epochs", 1,
                       "--cache", "none", "--out", name)
        assert done.returncode == 0, done.stdout + done.stderr
        models.append((bitloom.folder / name / "model.safetensors").read_bytes())
    # The files differ in the note about the data and in times; the tensors come last, and are the same.
    size = 20000
    assert min(map(len, models)) > size and models[0][-size:] == models[1][-size:]
