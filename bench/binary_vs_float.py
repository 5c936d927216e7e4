#!/usr/bin/env python3
"""Binary nets beside float nets on CIFAR-10: accuracy against minutes, operations, bytes, and images classified in a second.

binary_vs_float.py PROGRAM --data FOLDER [--nets NAME,...] [--float-bits BITS,...] [--rounds N] [--out FOLDER]: trains the nets that OUT
lacks, all on the same 45,000 images and on all cores, one after the other; classifies the test images with each, in turns; prints a
table, draws OUT/minutes.svg and OUT/bytes.svg and ends with a line of JSON. Minutes are those of training and its evaluations, over all
resumptions. Multiply-adds are of one view of an image: binary nets' of one bit. Bytes: of a binary net its file's, of a float net 2 for
each parameter (bf16), and with --float-bits (8,4) also as they are after their weights were rounded to so many bits, by
scripts/rounded_float.py. Float nets classify in f32 or bf16, whichever is faster here. Run it on an idle machine: two hours for all.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "scripts"))
import earlier_runs
import line_chart
import rounded_float

MINI = pathlib.Path(__file__).with_name("airbench-mini.json")
# Arguments of `bitloom train` for each net; epochs are those of the nets unless they are given.
NETS = {
    "cifar-small": ["binary", "--net", "cifar-small"],
    "cifar-deep": ["binary", "--net", "cifar-deep"],
    "cifar-deep2": ["binary", "--net", "cifar-deep2"],
    "cifar-base": ["binary", "--net", "cifar-base"],
    "tiny": ["cnn", "--net", "tiny", "--epochs", "10"],
    "airbench-mini": ["cnn", "--net", "airbench-mini.json", "--dtype", "bf16"],  # MINI
    "airbench-narrow": ["cnn", "--net", "airbench-narrow", "--dtype", "bf16"],
    "airbench94": ["cnn", "--net", "airbench94", "--dtype", "bf16"],
}
FLOAT_BYTES = 2  # of a parameter


def run(program, *arguments):
    done = subprocess.run([program, *[str(part) for part in arguments]], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"binary_vs_float.py: bitloom {' '.join(str(part) for part in arguments)} ended with code {done.returncode}")
    return done.stdout


def train(options, name):
    folder = options.out / name
    kind = NETS[name][0]
    if (folder / "model.safetensors").exists():
        return folder
    net = [MINI if part == MINI.name else part for part in NETS[name]]
    command = ["train", *net, "--data", options.data, "--out", folder, *(["--cache", "none"] if kind == "binary" else [])]
    if (folder / "options.ini").exists():
        command = ["train", kind, "--resume", "--out", folder]
    subprocess.run([options.program, *[str(part) for part in command]], check=True, stdout=sys.stderr)
    return folder


def curve(folder, kind):
    """[(minutes, validation accuracy of an image as it is)] while a net was trained, of the best head or net so far."""
    points, best = [], 0.0
    for event in earlier_runs.events_of(folder, "epoch" if kind == "binary" else "evaluation"):
        found = max(head["validation_accuracy"] for head in event["heads"]) if kind == "binary" else event["accuracy"]
        best = max(best, found)
        points.append((event["seconds"] / 60, 100 * best))
    return points


def classify(options, folder, kind, one_view):
    """The fastest of the types that a net classifies in."""
    views = ["--mirror", "off", "--shift", 0] if one_view else []
    types = [[]] if kind == "binary" else [["--dtype", "f32"], ["--dtype", "bf16"]]
    results = [json.loads(run(options.program, "eval", folder, "--data", options.data, "--json", *views, *each)) for each in types]
    return max(results, key=lambda result: result["images_per_second"])


def rounded(options, folder, bits):
    """The bytes and the accuracies, of all views and of one, of a float net with weights of that many bits."""
    exported, numbers, model = folder / "exported", folder / f"weights-{bits}.safetensors", folder / f"model-{bits}.safetensors"
    run(options.program, "export", folder, "--out", exported)
    size = rounded_float.round_file(exported / "model.safetensors", numbers, bits)
    run(options.program, "import", "cnn", numbers, "--like", folder, "--out", model)
    results = [classify(options, model, "float", one_view) for one_view in (False, True)]
    return {"bytes": size, "test_accuracy": results[0]["accuracy"], "test_accuracy_one_view": results[1]["accuracy"],
            "images_per_second": None, "images_per_second_one_view": None}


def describe(options, folder, kind):
    shown = json.loads(run(options.program, "inspect", folder, "--json"))
    if kind == "binary":
        return {"macs": shown["bit_macs"], "bytes": (folder / "model.safetensors").stat().st_size}
    return {"macs": shown["macs"], "bytes": FLOAT_BYTES * shown["parameters"]}


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("program")
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--nets", default=",".join(NETS))
    parser.add_argument("--float-bits", default="8,4")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/binary-vs-float"))
    options = parser.parse_args()
    names = options.nets.split(",")
    for name in names:
        if name not in NETS:
            parser.error(f"--nets: '{name}'; expected some of {', '.join(NETS)}")
    float_bits = [int(bits) if bits.isdigit() else 0 for bits in options.float_bits.split(",") if bits]
    if not all(2 <= bits <= 16 for bits in float_bits):
        parser.error(f"--float-bits: '{options.float_bits}'; expected numbers from 2 to 16")
    if options.rounds < 1:
        parser.error(f"--rounds: {options.rounds}; expected at least 1")
    options.out.mkdir(parents=True, exist_ok=True)
    earlier_runs.require_same_settings(options.out, {"data": str(options.data.resolve()), "nets": NETS, "mini": MINI.read_text()})
    folders = {name: train(options, name) for name in names}
    speeds = {name: ([], []) for name in names}
    rows = []
    for _ in range(options.rounds):
        results = {}
        for name in names:
            results[name] = [classify(options, folders[name], NETS[name][0], one_view) for one_view in (False, True)]
            for speed, result in zip(speeds[name], results[name]):
                speed.append(result["images_per_second"])
    for name in names:
        kind = NETS[name][0]
        rows.append({"net": name, "kind": "binary" if kind == "binary" else "float",
                     "minutes": earlier_runs.events_of(folders[name], "result")[-1]["seconds"] / 60,
                     "test_accuracy": results[name][0]["accuracy"], "test_accuracy_one_view": results[name][1]["accuracy"],
                     "images_per_second": statistics.median(speeds[name][0]),
                     "images_per_second_one_view": statistics.median(speeds[name][1])} | describe(options, folders[name], kind))
        if kind != "binary":
            rows += [rows[-1] | {"net": f"{name}, {bits} bits"} | rounded(options, folders[name], bits) for bits in float_bits]
    print(f"{'net':<26}{'kind':<8}{'minutes':>8}{'test':>8}{'one view':>10}{'M mult.-adds':>14}{'KiB':>8}{'images/s':>10}{'one view':>10}")
    for row in rows:
        speed = [f"{row[key]:,.0f}" if row[key] else "-" for key in ("images_per_second", "images_per_second_one_view")]
        print(f"{row['net']:<26}{row['kind']:<8}{row['minutes']:>8.1f}{row['test_accuracy']:>8.2%}{row['test_accuracy_one_view']:>10.2%}"
              f"{row['macs'] / 1e6:>14,.0f}{row['bytes'] / 1024:>8,.0f}{speed[0]:>10}{speed[1]:>10}")
    line_chart.draw(options.out / "minutes.svg", "minutes of training", "validation accuracy in %, one view",
                    {f"{name} ({NETS[name][0].replace('cnn', 'float')})": curve(folders[name], NETS[name][0]) for name in names})
    line_chart.draw(options.out / "bytes.svg", "bytes of the model", "test accuracy in %",
                    {f"{row['net']} ({row['kind']})": [(row["bytes"], 100 * row["test_accuracy"])] for row in rows}, lines=False, by_powers=True,
                    groups={f"{row['net']} ({row['kind']})": int(row["kind"] == "float") for row in rows})
    print(f"pictures: {options.out / 'minutes.svg'}, {options.out / 'bytes.svg'}")
    print(json.dumps({"rows": rows}))


main()
