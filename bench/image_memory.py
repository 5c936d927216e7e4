#!/usr/bin/env python3
"""Memory and time of a training on folders of pictures that do not fit --image-memory.

image_memory.py BITLOOM CIFAR FOLDER [--images N,N,...] [--size N]: makes folders of JPEG files of 256 x 256 pixels from the images
of CIFAR-10 (the folder CIFAR holds its binary files), trains a small net on each at --size pixels, with the images in a file and,
where --in-memory asks for it, in memory, and prints for each the largest resident memory of the process, that of its anonymous
part, which the program says itself, and seconds: of the first start, which decodes, and of the second. Needs Pillow and numpy. The
last line is JSON.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

NET = """{"name": "small224", "mirror": false,
  "encoder": {"kind": "whitened", "patch": 5, "filters": 32},
  "layers": [{"name": "layer1", "inputs": ["input"], "width": 32, "stride": 2},
             {"name": "layer2", "inputs": ["layer1"], "pool": "or", "width": 64},
             {"name": "layer3", "inputs": ["layer2"], "pool": "or", "width": 128}],
  "stages": [{"train": ["layer1"], "epochs": 1}, {"train": ["layer2"], "epochs": 1}, {"train": ["layer3"], "epochs": 2}]}"""
RECORD = 1 + 3 * 32 * 32


def make_folder(cifar, folder, count, tests):
    """`count` pictures for training, `tests` for tests, of ten classes."""
    import numpy
    from PIL import Image

    names = (cifar / "batches.meta.txt").read_text().split()
    batches = [numpy.fromfile(cifar / f"data_batch_{b}.bin", numpy.uint8).reshape(-1, RECORD) for b in range(1, 6)]
    sets = {"train": numpy.concatenate(batches)[:count],
            "test": numpy.fromfile(cifar / "test_batch.bin", numpy.uint8).reshape(-1, RECORD)[:tests]}
    for part, records in sets.items():
        for name in names:
            (folder / part / name).mkdir(parents=True)
        for i, record in enumerate(records):
            pixels = record[1:].reshape(3, 32, 32).transpose(1, 2, 0)
            picture = Image.fromarray(pixels).resize((256, 256), Image.BILINEAR)
            picture.save(folder / part / names[record[0]] / f"{i:07}.jpeg", quality=90)


def run(program, folder, out, cache, size, memory):
    """Seconds, peak of all resident memory, the program's own figure, test accuracy, images per second of the last stage."""
    shutil.rmtree(out, ignore_errors=True)
    net = folder.parent / "net.json"
    net.write_text(NET)
    command = [program, "train", "binary", "--net", str(net), "--data", str(folder), "--out", str(out), "--image-size", str(size),
               "--image-memory", memory, "--cache", str(cache), "--frozen", "recompute", "--validation", "0", "--batch", "32"]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if status != 0:
        sys.exit(f"{' '.join(command)}\n{text}")
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    epochs = [line for line in metrics if line["event"] == "epoch"]
    result = next(line for line in metrics if line["event"] == "result")
    waited = sum(line["times"]["data"] for line in epochs) / sum(sum(line["times"].values()) for line in epochs)
    # Layers of an earlier run would come from the cache: they are not wanted, but the images are.
    for entry in cache.glob("*.blob"):
        entry.unlink()
    return {"seconds": seconds, "resident_peak": 1024 * usage.ru_maxrss, "anonymous_peak": result["peak_memory_bytes"],
            "test_accuracy": result["test_accuracy"], "images_per_second": epochs[-1]["images_per_second"],
            "share_of_time_for_reading": waited}


def main():
    parser = argparse.ArgumentParser(description="Memory and time of a training on large folders of pictures.")
    parser.add_argument("program", help="bitloom")
    parser.add_argument("cifar", type=pathlib.Path, help="cifar-10-batches-bin")
    parser.add_argument("folder", type=pathlib.Path, help="where pictures and runs go")
    parser.add_argument("--images", default="1000,4000", help="of training sets (default: %(default)s)")
    parser.add_argument("--tests", type=int, default=500, help="test images (default: %(default)s)")
    parser.add_argument("--size", type=int, default=224, help="pixels (default: %(default)s)")
    parser.add_argument("--in-memory", action="store_true", help="also with all images in memory")
    arguments = parser.parse_args()
    rows = []
    for count in map(int, arguments.images.split(",")):
        folder = arguments.folder / f"pictures-{count}"
        if not folder.exists():
            make_folder(arguments.cifar, folder, count, arguments.tests)
        cache = arguments.folder / f"cache-{count}"
        shutil.rmtree(cache, ignore_errors=True)
        ways = [("file, first start", "1MiB"), ("file, second start", "1MiB")]
        if arguments.in_memory:
            ways.append(("memory", "1TiB"))
        for name, memory in ways:
            row = {"images": count, "size": arguments.size, "way": name, "pixels": count * 3 * arguments.size**2,
                   **run(arguments.program, folder, arguments.folder / "run", cache, arguments.size, memory)}
            rows.append(row)
            print(f"{count:>8} images, {row['pixels'] / 2**20:6.0f} MiB of pixels, {name:<19} {row['seconds']:6.1f} s, "
                  f"resident {row['resident_peak'] / 2**20:6.0f} MiB, anonymous {row['anonymous_peak'] / 2**20:6.0f} MiB, "
                  f"reading {row['share_of_time_for_reading']:.1%} of a step, {row['images_per_second']:.0f} images/s, "
                  f"test {row['test_accuracy']:.1%}", flush=True)
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
