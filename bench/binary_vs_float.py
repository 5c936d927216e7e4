#!/usr/bin/env python3
"""Binary nets beside float nets on CIFAR-10: accuracy against minutes, operations, bytes, and images classified in a second.

binary_vs_float.py PROGRAM --data FOLDER [--nets NAME,...] [--float-bits BITS,...] [--rounds N] [--out FOLDER]: trains the nets that OUT
lacks, all on the same 45,000 images and on all cores, one after the other; classifies the test images with each, in turns: in all of its
views, in as many as it needs until a class has the probability 0.8, and in one; prints a table, draws OUT/minutes.svg and OUT/bytes.svg
and ends with a line of JSON. Minutes are those of training and its evaluations, over all resumptions, and those of a net's teacher and its
labels. Multiply-adds are of one view of an image: binary nets' of one bit. Bytes: of a binary net its file's, of a float net 2 for each
parameter (bf16), and with --float-bits (8,4) also as they are after their weights were rounded to so many bits, by
scripts/rounded_float.py. Float nets classify in f32 or bf16, whichever is faster here. Run it on an idle machine: an hour and a half for
all but cifar-wide-taught, three with it.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "scripts"))
import earlier_runs
import line_chart
import rounded_float

MINI = pathlib.Path(__file__).with_name("airbench-mini.json")
MUON = ["--batch", "256", "--set", "together.second_moment_decay=0", "--set", "together.muon_momentum=0.9", "--set", "net.shift=1"]
FLOAT = ["--epochs", "10", "--label-smoothing", "0.05", "--dtype", "bf16"]
WIDTHS = {"layer2": 192, "layer3": 192, "layer4": 384, "layer5": 384}
# Arguments of `bitloom train` for each net; epochs are those of the nets unless they are given. The last three binary nets are those of
# scripts/repro-cifar10 for 10, 30 and 120 minutes. After --teacher: another net of these.
NETS = {
    "tiny": ["cnn", "--net", "tiny", "--epochs", "10"],
    "airbench-mini": ["cnn", "--net", "airbench-mini.json", "--dtype", "bf16"],  # MINI
    "airbench-narrow": ["cnn", "--net", "airbench-narrow", *FLOAT],
    "airbench94": ["cnn", "--net", "airbench94", *FLOAT],
    "airbench-mini-taught": ["cnn", "--net", "airbench-mini.json", "--dtype", "bf16", "--teacher", "airbench-narrow"],
    "cifar-small": ["binary", "--net", "cifar-small"],
    "cifar-deep2": ["binary", "--net", "cifar-deep2", "--epochs", "14", *MUON, "--augment", "crop4,flip"],
    "cifar-deep2-taught": [
        "binary", "--net", "cifar-deep2", "--epochs", "31", *MUON, "--augment", "crop4,flip", "--teacher", "airbench-narrow"],
    "cifar-wide-taught": [
        "binary", "--net", "cifar-deep2", "--epochs", "75", *MUON, "--set", "encoder.filters=256", "--set", "layer1.kernel=1",
        "--set", "layer1.padding=0", "--set", "together.smallest_offset=-2",
        *[part for layer, width in WIDTHS.items() for part in ("--set", f"{layer}.width={width}")],
        "--augment", "crop4,flip,cutout8", "--teacher", "airbench94"],
}
LEAST_DRAWN = 60  # per cent
LABELLING = "labelling-seconds.txt"  # in a run's folder
SURE = 0.8  # the probability with which a class needs no more views, of all nets
VIEWS = {"all views": ["--sure", 1], "until sure": ["--sure", SURE], "one view": ["--mirror", "off", "--shift", 0]}
FLOAT_BYTES = 2  # of a parameter


def run(program, *arguments):
    done = subprocess.run([program, *[str(part) for part in arguments]], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"binary_vs_float.py: bitloom {' '.join(str(part) for part in arguments)} ended with code {done.returncode}")
    return done.stdout


def teacher_of(name):
    """The net whose answers a net learns from, or None."""
    return NETS[name][NETS[name].index("--teacher") + 1] if "--teacher" in NETS[name] else None


def train(options, name):
    folder = options.out / name
    kind, *arguments = NETS[name]
    if (folder / "model.safetensors").exists() and earlier_runs.events_of(folder, "result"):
        return folder
    replaced = {MINI.name: MINI}
    if teacher_of(name):
        replaced[teacher_of(name)] = train(options, teacher_of(name))
    net = [replaced.get(part, part) for part in arguments]
    command = ["train", kind, *net, "--data", options.data, "--out", folder, *(["--cache", "none"] if kind == "binary" else [])]
    if (folder / "options.ini").exists():
        command = ["train", kind, "--resume", "--out", folder]
    start = time.monotonic()
    subprocess.run([options.program, *[str(part) for part in command]], check=True, stdout=sys.stderr)
    if teacher_of(name) and "--resume" not in command:
        besides = time.monotonic() - start - earlier_runs.events_of(folder, "result")[-1]["seconds"]
        (folder / LABELLING).write_text(f"{besides}\n")
    return folder


def teaching_minutes(options, name):
    """Of its teacher's training, and of all that the net's run did besides training: the labels."""
    if not teacher_of(name):
        return 0
    labelling = options.out / name / LABELLING
    return minutes_of(options, teacher_of(name)) + (float(labelling.read_text()) / 60 if labelling.exists() else 0)


def minutes_of(options, name):
    return earlier_runs.events_of(options.out / name, "result")[-1]["seconds"] / 60 + teaching_minutes(options, name)


def curve(options, name):
    """[(minutes, validation accuracy of an image as it is)] while a net was trained, of the best head or net so far."""
    kind = NETS[name][0]
    taught = teaching_minutes(options, name)
    points, best = [], 0.0
    for event in earlier_runs.events_of(options.out / name, "epoch" if kind == "binary" else "evaluation"):
        found = max(head["validation_accuracy"] for head in event["heads"]) if kind == "binary" else event["accuracy"]
        best = max(best, found)
        points.append((taught + event["seconds"] / 60, 100 * best))
    return points


def classify(options, folder, kind, views):
    """The fastest of the types that a net classifies in."""
    types = [[]] if kind == "binary" else [["--dtype", "f32"], ["--dtype", "bf16"]]
    results = [json.loads(run(options.program, "eval", folder, "--data", options.data, "--json", *VIEWS[views], *each)) for each in types]
    return max(results, key=lambda result: result["images_per_second"])


def rounded(options, folder, bits):
    """The bytes and the accuracies of a float net with weights of that many bits."""
    exported, numbers, model = folder / "exported", folder / f"weights-{bits}.safetensors", folder / f"model-{bits}.safetensors"
    run(options.program, "export", folder, "--out", exported)
    size = rounded_float.round_file(exported / "model.safetensors", numbers, bits)
    run(options.program, "import", "cnn", numbers, "--like", folder, "--out", model)
    return {"bytes": size, "test_accuracy": {views: classify(options, model, "float", views)["accuracy"] for views in VIEWS},
            "images_per_second": {}}


def describe(options, folder, kind):
    shown = json.loads(run(options.program, "inspect", folder, "--json"))
    if kind == "binary":
        return {"macs": shown["bit_macs"], "bytes": (folder / "model.safetensors").stat().st_size}
    return {"macs": shown["macs"], "bytes": FLOAT_BYTES * shown["parameters"]}


def draw(options, names, rows):
    curves = {f"{name} ({NETS[name][0].replace('cnn', 'float')})": curve(options, name) for name in names}
    line_chart.draw(options.out / "minutes.svg", "minutes of training", "validation accuracy in %, one view",
                    {name: [point for point in points if point[1] >= LEAST_DRAWN] for name, points in curves.items()})
    sizes = {}  # of a float net by the bits of its weights
    for row in rows:
        name = row["net"].split(", ")[0]
        sizes.setdefault(f"{name} ({row['kind']})", []).append((row["bytes"] / 1024, 100 * row["test_accuracy"]["all views"]))
    line_chart.draw(options.out / "bytes.svg", "KiB of the model", "test accuracy in %, all views",
                    {name: sorted(points) for name, points in sizes.items()}, by_powers=True)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("program")
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--nets", default=",".join(name for name in NETS if name != "cifar-wide-taught"))
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
    speeds = {(name, views): [] for name in names for views in VIEWS}
    accuracy = {}
    for _ in range(options.rounds):
        for name, views in speeds:
            result = classify(options, folders[name], NETS[name][0], views)
            accuracy[name, views] = result["accuracy"]
            speeds[name, views].append(result["images_per_second"])
    rows = []
    for name in names:
        kind = "binary" if NETS[name][0] == "binary" else "float"
        rows.append({"net": name, "kind": kind, "minutes": minutes_of(options, name),
                     "test_accuracy": {views: accuracy[name, views] for views in VIEWS},
                     "images_per_second": {views: statistics.median(speeds[name, views]) for views in VIEWS}}
                    | describe(options, folders[name], kind))
        if kind == "float":
            rows += [rows[-1] | {"net": f"{name}, {bits} bits"} | rounded(options, folders[name], bits) for bits in float_bits]
    print(f"{'':<70}" + "".join(f"{views:>20}" for views in VIEWS))
    print(f"{'net':<30}{'kind':<8}{'minutes':>10}{'M mult.-adds':>14}{'KiB':>8}" + f"{'test':>10}{'images/s':>10}" * len(VIEWS))
    for row in rows:
        cells = [f"{row['test_accuracy'][views]:>10.2%}{row['images_per_second'].get(views, 0):>10,.0f}" for views in VIEWS]
        sizes = f"{row['macs'] / 1e6:>14,.0f}{row['bytes'] / 1024:>8,.0f}"
        print(f"{row['net']:<30}{row['kind']:<8}{row['minutes']:>10.1f}{sizes}" + "".join(cells))
    draw(options, names, rows)
    print(f"pictures: {options.out / 'minutes.svg'}, {options.out / 'bytes.svg'}")
    print(json.dumps({"rows": rows}))


main()
