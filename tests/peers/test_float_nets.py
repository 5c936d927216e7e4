"""The golden files of the float engine are what PyTorch computes today: they cannot go stale unnoticed."""
import sys

import numpy as np
import pytest
import safetensors
from conftest import ROOT

GOLDEN = ROOT / "tests/golden"
sys.path.insert(0, str(GOLDEN))
import make_float_nets  # noqa: E402


def error(found, expected):
    """As tests/support/compare.h: per element, relative to it or to the root mean square of all, whichever is larger."""
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    scale = np.maximum(np.abs(expected), np.sqrt(np.mean(expected**2)))
    return np.max(np.abs(found - expected) / np.where(scale > 0, scale, 1))


# The files are rounded to f32; in f32 PyTorch itself is as near to them as Bitloom has to be.
@pytest.mark.torch
@pytest.mark.parametrize("dtype, limit", [("float64", 1e-7), ("float32", 1e-4)])
@pytest.mark.parametrize("name", make_float_nets.NETS)
def test_golden_files_are_what_pytorch_computes(name, dtype, limit):
    fresh, options = make_float_nets.train(name, dtype)
    with safetensors.safe_open(GOLDEN / f"{name}.safetensors", framework="numpy") as file:
        stored, metadata = {key: file.get_tensor(key) for key in file.keys()}, file.metadata()
    assert metadata == options
    assert stored.keys() == fresh.keys()
    for key, values in stored.items():
        assert values.shape == fresh[key].shape, key
        if values.dtype == np.int32:
            assert np.array_equal(values, fresh[key]), key
        else:
            assert values.dtype == np.float32, key
            assert error(fresh[key], values) < limit, key
