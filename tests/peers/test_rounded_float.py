"""Float weights in few bits (scripts/rounded_float.py): values, bytes, and what a file keeps."""
import array
import json
import struct

import pytest
import rounded_float


def write(path, tensors, metadata):
    header, data = {"__metadata__": metadata}, b""
    for name, (shape, values) in tensors.items():
        content = array.array("f", values).tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read(path):
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + length])
    values = {}
    for name, tensor in header.items():
        if name != "__metadata__":
            begin, end = tensor["data_offsets"]
            values[name] = list(array.array("f", content[8 + length + begin:8 + length + end]))
    return header["__metadata__"], values


@pytest.fixture
def rounded(tmp_path):
    tensors = {"weight": ([2, 3], [3.0, -1.4, 0.6, 0.0, 0.0, 0.0]), "bias": ([2], [0.123, 4.5]), "running_mean": ([2], [1.0, 2.0])}
    write(tmp_path / "in", tensors, {"bitloom.kind": "cnn", "bitloom.xxh3": "0"})
    return rounded_float.round_file(tmp_path / "in", tmp_path / "out", 3), *read(tmp_path / "out")


def test_rows_are_multiples_of_their_steps(rounded):
    _, _, values = rounded
    assert values["weight"] == [3.0, -1.0, 1.0, 0.0, 0.0, 0.0]  # 3 bits: from -3 to 3 times a step


def test_vectors_and_metadata_stay(rounded):
    _, metadata, values = rounded
    assert values["bias"] == pytest.approx([0.123, 4.5])
    assert values["running_mean"] == [1.0, 2.0]
    assert metadata == {"bitloom.kind": "cnn"}  # without the checksum of other bytes


def test_bytes_are_counted(rounded):
    assert rounded[0] == round(6 * 3 / 8 + 2 * 4 + 2 * 2)
