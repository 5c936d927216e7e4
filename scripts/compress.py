"""What scripts/repro-compress runs: a GPT by several processes, with whole gradients and with factors of them.

compress.py --data FILE [--workers N] [--ranks 1,2,4,8] [--net L,H,W] [--context T] [--steps N] [--batch B] [--rate R] [--seeds N]
[--out FOLDER]: prints a table of validation losses in nats per byte of text and of the bytes that a process sends in a step, writes
FOLDER/losses.svg, and ends with a line of JSON. Aim: the mean loss of some rank is within the spread of seeds of whole gradients, or
below, with at least a quarter fewer bytes."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = pathlib.Path(os.environ.get("BITLOOM", ROOT / "build/release/bin/bitloom"))


def train(options, rank, seed):
    """Validation loss, bytes that process 0 sends in a step, and seconds of a run, which is made or continued if need be."""
    run = options.out / f"rank{rank}-seed{seed}"
    if not (run / "model.safetensors").exists():
        layers, heads, width = options.net
        arguments = ["--data", options.data, "--tokenizer", "bytes", "--layers", layers, "--heads", heads, "--width", width, "--context",
                     options.context, "--steps", options.steps, "--batch", options.batch, "--learning-rate", options.rate, "--dropout", 0,
                     "--seed", seed, "--compress-rank", rank, "--evaluate-every", options.steps, "--evaluate-sequences", 0, "--keep", "last"]
        if (run / "options.ini").exists():
            arguments = ["--resume"]
        command = ["mpirun", "-n", options.workers, PROGRAM, "train", "gpt", *arguments, "--out", run]
        done = subprocess.run([str(part) for part in command], env=dict(os.environ, OMP_NUM_THREADS="1"), stdout=sys.stderr)
        if done.returncode != 0:
            sys.exit(f"compress.py: training {run.name} ended with code {done.returncode}")
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    result = [event for event in events if event["event"] == "result"][-1]
    step = [event for event in events if event["event"] == "step"][-1]
    return {"loss": result["validation_loss"], "seconds": result["seconds"], "bytes": step["sent_bytes"]}


def draw(rows, file):
    """Losses of all seeds against bytes, both in linear scales."""
    width, height, left, bottom = 640, 400, 70, 50
    losses = [loss for row in rows for loss in row["losses"]]
    low, high = min(losses), max(losses)
    margin = (high - low) / 10 or 0.01
    low, high = low - margin, high + margin
    most = max(row["bytes"] for row in rows)

    def x(count):
        return left + (width - left - 30) * count / most

    def y(loss):
        return height - bottom - (height - bottom - 30) * (loss - low) / (high - low)

    marks = []
    for row in rows:
        marks += [f'<circle cx="{x(row["bytes"]):.1f}" cy="{y(loss):.1f}" r="4" fill="#2563eb" fill-opacity="0.6"/>' for loss in row["losses"]]
        marks.append(f'<text x="{x(row["bytes"]):.1f}" y="{y(max(row["losses"])) - 9:.1f}" text-anchor="middle">{row["short"]}</text>')
    for i in range(5):
        loss = low + (high - low) * i / 4
        marks.append(f'<text x="{left - 8}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss:.3f}</text>')
        count = most * i / 4
        marks.append(f'<text x="{x(count):.1f}" y="{height - bottom + 18}" text-anchor="middle">{count / 2**20:.2f}</text>')
    file.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" fill="#1c2430">'
        f'<rect width="{width}" height="{height}" fill="#fff"/><path d="M{left} 20V{height - bottom}H{width - 20}" fill="none" stroke="#98a2b3"/>'
        f'{"".join(marks)}<text x="{(width + left) / 2}" y="{height - 12}" text-anchor="middle">MiB that a process sends in a step</text>'
        f'<text x="16" y="{height / 2 - 10}" text-anchor="middle" transform="rotate(-90 16 {height / 2 - 10})">validation loss</text></svg>\n')


def parse():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--ranks", default="1,2,4,8,16")
    parser.add_argument("--net", default="4,4,128")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs/compress")
    parser.add_argument("--rate", type=float, default=3e-3)
    for name, default in (("workers", 2), ("context", 128), ("steps", 500), ("batch", 16), ("seeds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    options.net = tuple(int(part) for part in options.net.split(","))
    options.ranks = [int(part) for part in options.ranks.split(",")]
    return options


def require_same_settings(options):
    """Runs that are there already are not made again, so they must be of these settings."""
    settings = {name: getattr(options, name) for name in ("workers", "net", "context", "steps", "batch", "rate")}
    text = json.dumps(settings | {"data": str(options.data.resolve())}, sort_keys=True)
    file = options.out / "settings.json"
    if file.exists() and file.read_text() != text:
        sys.exit(f"compress.py: {options.out} has runs with other settings: {file.read_text()}; now: {text}. Choose another --out")
    file.write_text(text)


def main():
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    require_same_settings(options)
    print(f"validation loss after {options.steps} steps of {options.batch} x {options.context} tokens by {options.workers} processes, "
          f"{options.seeds} seeds")
    print(f"{'':<20}mean    smallest to largest   bytes of a step", flush=True)
    rows = []
    for rank in [0, *options.ranks]:
        runs = [train(options, rank, seed) for seed in range(1, options.seeds + 1)]
        losses = [run["loss"] for run in runs]
        row = {"rank": rank, "short": str(rank) if rank else "whole", "losses": losses, "mean": statistics.mean(losses),
               "bytes": runs[0]["bytes"], "seconds": statistics.median(run["seconds"] for run in runs)}
        rows.append(row)
        row["share_of_bytes"] = row["bytes"] / rows[0]["bytes"]
        row["within_spread"] = row["mean"] <= max(rows[0]["losses"])
        print(f"{f'factors of rank {rank}' if rank else 'whole gradients':<20}{row['mean']:.4f}  {min(losses):.4f} to {max(losses):.4f}"
              f"      {row['bytes']:>12,}  {row['share_of_bytes']:.1%}", flush=True)
    draw(rows, options.out / "losses.svg")
    good = [row["share_of_bytes"] for row in rows[1:] if row["within_spread"]]
    print(f"picture: {options.out / 'losses.svg'}")
    print(json.dumps({"workers": options.workers, "steps": options.steps, "rows": rows,
                      "aims": {"within the spread with a quarter fewer bytes": bool(good) and min(good) <= 0.75}}))


main()
