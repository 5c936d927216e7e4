"""Distances and scores of sets of images are those of the formulas that others compute, from the same features."""
import json

import numpy as np
import pytest
from conftest import write_png
from safetensors.numpy import load_file
from scipy import linalg, ndimage


def run(bitloom, *arguments):
    done = bitloom(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sets(bitloom):
    for name, seed, count in (("one", 5, 150), ("two", 6, 120)):
        run(bitloom, "data", "synth-pairs", "--count", count, "--side", 32, "--seed", seed, "--out", name)
    run(bitloom, "train", "clip", "--data", "one", "--net", "tiny", "--side", 16, "--batch", 12, "--steps", 24, "--out", "near")
    run(bitloom, "train", "cnn", "--data", "synth", "--net", "tiny", "--max-train", 200, "--max-test", 20, "--validation", 0,
        "--batch", 40, "--steps", 10, "--out", "classes")
    return "one", "two"


def compared(bitloom, sets, features, *options):
    text = run(bitloom, "compare", *sets, "--features", features, "--json", "--write-features", "features.safetensors", *options)
    return json.loads(text), load_file(bitloom.folder / "features.safetensors")


def frechet_distance(a, b):
    """Heusel et al. 2017, equation 6, with a matrix square root of the product, as the usual programs have it."""
    first, second = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    root = linalg.sqrtm(first @ second)
    assert np.isfinite(root).all() and np.abs(np.imag(root)).max() < 1e-3
    difference = a.mean(0) - b.mean(0)
    return difference @ difference + np.trace(first) + np.trace(second) - 2 * np.trace(np.real(root))


def inception_score(probabilities, parts):
    scores = []
    for part in range(parts):
        p = probabilities[part * len(probabilities) // parts:(part + 1) * len(probabilities) // parts]
        divergence = (p * (np.log(p) - np.log(p.mean(0, keepdims=True)))).sum(1)
        scores.append(np.exp(divergence.mean()))
    return np.mean(scores), np.std(scores)


@pytest.mark.parametrize("features, blur", [("near", 0), ("near", 1.5), ("classes", 0)])
def test_the_distance_is_that_of_a_matrix_square_root(bitloom, sets, features, blur):
    ours, files = compared(bitloom, sets, features, "--blur", blur)
    assert files["a"].shape == (150, ours["columns"]) and files["b"].shape == (120, ours["columns"])
    expected = frechet_distance(files["a"], files["b"])
    assert expected > 1e-9
    assert ours["frechet_distance"] == pytest.approx(expected, rel=1e-6)


def test_the_inception_score_is_theirs(bitloom, sets):
    ours, files = compared(bitloom, sets, "classes", "--parts", 7)
    for name in "ab":
        mean, deviation = inception_score(files[f"probabilities_{name}"], 7)
        assert mean > 1
        assert ours[name]["inception_score"] == pytest.approx(mean, rel=1e-9)
        assert ours[name]["inception_score_deviation"] == pytest.approx(deviation, rel=1e-6)


def test_images_are_blurred_as_scipy_does(bitloom, sets):
    """Images that scipy blurred have the features of those that Bitloom blurs."""
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (40, 3, 16, 16)).astype(np.uint8)
    blurred = ndimage.gaussian_filter(images.astype(np.float64), (0, 0, 1.25, 1.25), mode="reflect")
    for name, pixels in (("sharp", images), ("blurred", np.rint(blurred).astype(np.uint8))):
        (bitloom.folder / name).mkdir()
        for i, image in enumerate(pixels):
            write_png(bitloom.folder / name / f"{i:02}.png", image)
    _, ours = compared(bitloom, ("sharp", "sharp"), "near", "--blur", 1.25)
    _, theirs = compared(bitloom, ("blurred", "blurred"), "near")
    _, sharp = compared(bitloom, ("sharp", "sharp"), "near")
    # Halves may be rounded either way.
    assert np.abs(ours["a"] - theirs["a"]).max() < 2e-3 < np.abs(sharp["a"] - theirs["a"]).max()
