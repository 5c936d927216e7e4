#!/usr/bin/env python3
"""The speed of a binary net that was exported to C and to ONNX, beside that of Bitloom, one core each.

exported.py PROGRAM RUN --data FOLDER [--images N] [--rounds N] [--onnx]: compiles what `bitloom export` writes with gcc and, where it is
there, clang, -O2 -march=native and -march=x86-64-v3; all classify the same test images in turns (`bitloom eval` with one thread; for v3
with its AVX2 kernels). Checks that all compilers' scores are the same. --onnx: onnxruntime, too, from PyPI. Prints images/s, medians, and
ratios, and ends with a line of JSON.
"""
import argparse
import hashlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
AIM = 0.5  # of Bitloom's speed, -march=native


def compile_net(compiler, flags, folder, name):
    program = folder / name
    subprocess.run([compiler, "-O2", *flags, f"-I{folder}", folder / "net.c", ROOT / "tests/models/print_scores.c", "-lm", "-o", program], check=True)
    return program


def rate_of_program(program, images, file):
    start = time.perf_counter()
    scores = subprocess.run([program, file, str(images)], check=True, stdout=subprocess.PIPE).stdout
    return images / (time.perf_counter() - start), hashlib.sha256(scores).hexdigest()


def rate_of_bitloom(options, isa):
    environment = dict(os.environ, OMP_NUM_THREADS="1", **({"BITLOOM_ISA": isa} if isa else {}))
    done = subprocess.run([options.program, "eval", options.run, "--data", options.data, "--max-test", str(options.images), "--sure", "1",
                           "--json"], check=True, stdout=subprocess.PIPE, env=environment)
    return json.loads(done.stdout)["images_per_second"]


def rate_of_onnx(file, images, records):
    import numpy as np
    import onnxruntime
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, settings, providers=["CPUExecutionProvider"])
    pixels = np.fromfile(records, np.uint8).reshape(-1, 3073)[:images, 1:].reshape(-1, 3, 32, 32)
    session.run(None, {"image": pixels[:20]})
    start = time.perf_counter()
    for first in range(0, len(pixels), 20):
        session.run(None, {"image": pixels[first:first + 20]})
    return len(pixels) / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("program")
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path, required=True, help="CIFAR-10's binary files")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--onnx", action="store_true")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # of what is started, too
    records = options.data / "test_batch.bin"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for file, views in (("net.c", ["--sure", "1"]), ("net.onnx", [])):  # ONNX gives each image all views
            subprocess.run([options.program, "export", options.run, "--out", folder / file, *views], check=True, stdout=subprocess.DEVNULL)
        contenders = {"bitloom": lambda: rate_of_bitloom(options, ""), "bitloom, avx2": lambda: rate_of_bitloom(options, "avx2")}
        hashes = set()

        def of_program(program):
            rate, scores = rate_of_program(program, options.images, records)
            hashes.add(scores)
            return rate

        for compiler in ("gcc", "clang"):
            if not shutil.which(compiler):
                continue
            for march in ("native", "x86-64-v3"):
                program = compile_net(compiler, [f"-march={march}"], folder, f"{compiler}-{march}")
                contenders[f"C, {compiler} {march}"] = lambda program=program: of_program(program)
        if options.onnx:
            contenders["onnxruntime"] = lambda: rate_of_onnx(folder / "net.onnx", options.images, records)
        rates = {contender: [] for contender in contenders}
        for _ in range(options.rounds):
            for contender, measure in contenders.items():
                rates[contender].append(measure())
    if len(hashes) != 1:
        sys.exit("exported.py: compilers differ in scores")
    medians = {contender: statistics.median(values) for contender, values in rates.items()}
    for contender, rate in medians.items():
        own = medians["bitloom, avx2" if "v3" in contender else "bitloom"]
        print(f"{contender:<24}{rate:>10,.0f} images/s{rate / own:>8.2f}x")
    ratio = medians["C, gcc native"] / medians["bitloom"]
    print(json.dumps({"images_per_second": medians, "aims": {"C, gcc -O2 -march=native": {"value": ratio, "aim": AIM, "met": ratio >= AIM}}}))


main()
