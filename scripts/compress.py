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

import earlier_runs
import line_chart

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
    result = earlier_runs.events_of(run, "result")[-1]
    sent = earlier_runs.events_of(run, "step")[-1]["sent_bytes"]
    return {"loss": result["validation_loss"], "seconds": result["seconds"], "bytes": sent}


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


def main():
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    names = ("workers", "net", "context", "steps", "batch", "rate")
    settings = {name: getattr(options, name) for name in names} | {"data": str(options.data.resolve())}
    earlier_runs.require_same_settings(options.out, settings)
    print(f"validation loss after {options.steps} steps of {options.batch} x {options.context} tokens by {options.workers} processes, "
          f"{options.seeds} seeds")
    print(f"{'':<20}mean    smallest to largest   bytes of a step", flush=True)
    rows = []
    for rank in [0, *options.ranks]:
        runs = [train(options, rank, seed) for seed in range(1, options.seeds + 1)]
        losses = [run["loss"] for run in runs]
        row = {"rank": rank, "losses": losses, "mean": statistics.mean(losses),
               "bytes": runs[0]["bytes"], "seconds": statistics.median(run["seconds"] for run in runs)}
        rows.append(row)
        row["share_of_bytes"] = row["bytes"] / rows[0]["bytes"]
        row["within_spread"] = row["mean"] <= max(rows[0]["losses"])
        print(f"{f'factors of rank {rank}' if rank else 'whole gradients':<20}{row['mean']:.4f}  {min(losses):.4f} to {max(losses):.4f}"
              f"      {row['bytes']:>12,}  {row['share_of_bytes']:.1%}", flush=True)
    line_chart.draw(options.out / "losses.svg", "MiB that a process sends in a step", "validation loss",
                    {row["rank"] or "whole": [(row["bytes"] / 2**20, loss) for loss in row["losses"]] for row in rows}, lines=False)
    good = [row["share_of_bytes"] for row in rows[1:] if row["within_spread"]]
    print(f"picture: {options.out / 'losses.svg'}")
    print(json.dumps({"workers": options.workers, "steps": options.steps, "rows": rows,
                      "aims": {"within the spread with a quarter fewer bytes": bool(good) and min(good) <= 0.75}}))


main()
