"""Float weights in few bits: every row of a matrix or of kernels (one output) in multiples of a step of its own, as binary nets' heads
have them (layerwise/rounded_weights.h).

rounded_float.py FILE.safetensors OUT.safetensors BITS: rounds the weights of an export of PyTorch's layers (`bitloom export`) after
training, and prints the bytes that they take so: BITS of each weight, 4 of each row's step, 2 of each number of a vector that is a
parameter (bf16). Running statistics of batch norm are not counted, as they are not where other float nets' bytes are.
"""
import array
import json
import math
import struct
import sys


def rounded(row, bits):
    most = 2 ** (bits - 1) - 1
    largest = max(abs(weight) for weight in row)
    if largest == 0:
        return list(row)
    step = largest / most
    return [step * round(weight / step) for weight in row]


def round_file(source, target, bits):
    """Writes the file with rounded weights; returns its bytes, as above."""
    content = source.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + length])
    data = bytearray(content[8 + length:])
    size = 0
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        begin, end = tensor["data_offsets"]
        shape = tensor["shape"]
        if tensor["dtype"] != "F32":
            continue
        if len(shape) < 2:
            size += 0 if "running_" in name else 2 * math.prod(shape)
            continue
        values = array.array("f", bytes(data[begin:end]))
        width = len(values) // shape[0]
        for row in range(shape[0]):
            part = slice(row * width, (row + 1) * width)
            values[part] = array.array("f", rounded(values[part], bits))
        data[begin:end] = values.tobytes()
        size += shape[0] * (width * bits / 8 + 4)
    header.get("__metadata__", {}).pop("bitloom.xxh3", None)  # the checksum of other bytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    target.write_bytes(struct.pack("<Q", len(text)) + text + bytes(data))
    return round(size)


if __name__ == "__main__":
    import pathlib
    if len(sys.argv) != 4 or not sys.argv[3].isdigit() or not 2 <= int(sys.argv[3]) <= 16:
        sys.exit("usage: rounded_float.py FILE.safetensors OUT.safetensors BITS, from 2 to 16")
    print(round_file(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])))
