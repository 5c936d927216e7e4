"""What scripts/repro-compress runs: a GPT by several processes, with whole gradients, with factors of them, and in local steps.

compress.py --data FILE [--workers N] [--ranks 1,2,4,8] [--shard-ranks S] [--inner-steps 8,20] [--share S] [--net L,H,W] [--context T]
[--steps N] [--batch B] [--rate R] [--local-rate R] [--outer R,M] [--bits B] [--kept S] [--seeds N] [--kills N] [--checkpoint-seconds S]
[--optimizer NAME] [--format f32|1-6-9] [--start fixed|warm] [--out FOLDER]: prints a table of validation losses in nats per byte of text
and of the bytes that a process sends (in local steps: sends or receives, whichever is more) in a step, writes FOLDER/losses.svg, and ends
with a line of JSON. --local-rate is the learning rate of local steps, by default the root of the number of workers, up to 3, times the
rate, or with --optimizer muon the rate; --outer has the rate and the momentum of the shared parameters. With --shard-ranks that many
neighbours divide the parameters, in one more row for each rank of factors that is a multiple; factors are then of shards, and bytes those
of parameters and gradients among neighbours, too. Local steps send the share S of differences, in B bits each, and keep the share --kept of
the rest; factors are sent in --format, and begin with --start. With --kills every seed is trained once more in local steps (the first of
--inner-steps), in which that many processes are killed, one at a time; they have checkpoints every --checkpoint-seconds. Aims: the mean
loss of some rank, with at least a quarter fewer bytes, and of local steps, with 400 times fewer, is within the spread of seeds of whole
gradients, or below; with kills it is within that of local steps."""

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys

import earlier_runs
import line_chart
import local_workers

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = pathlib.Path(os.environ.get("BITLOOM", ROOT / "build/release/bin/bitloom"))


def arguments_of(options, batch, seed, rate):
    layers, heads, width = options.net
    return ["--data", options.data, "--tokenizer", "bytes", "--layers", layers, "--heads", heads, "--width", width, "--context",
            options.context, "--steps", options.steps, "--batch", batch, "--learning-rate", rate, "--dropout", 0, "--seed", seed,
            "--optimizer", options.optimizer, "--evaluate-every", options.steps, "--evaluate-sequences", 0, "--keep", "last"]


def train(options, rank, seed, shards=0):
    """Validation loss, bytes that process 0 sends in a step, and seconds of a run, which is made or continued if need be."""
    run = options.out / f"rank{rank}-seed{seed}{f'-shards{shards}' if shards else ''}"
    if not (run / "model.safetensors").exists():
        arguments = [*arguments_of(options, options.batch, seed, options.rate), "--compress-rank", rank]
        if rank:
            arguments += ["--compress-format", options.format, "--compress-start", options.start]
        if (run / "options.ini").exists():
            arguments = ["--resume"]
        if shards:
            arguments += ["--shard", "parameters", "--shard-ranks", shards]
        command = ["mpirun", "-n", options.workers, PROGRAM, "train", "gpt", *arguments, "--out", run]
        done = subprocess.run([str(part) for part in command], env=dict(os.environ, OMP_NUM_THREADS="1"), stdout=sys.stderr)
        if done.returncode != 0:
            sys.exit(f"compress.py: training {run.name} ended with code {done.returncode}")
    result = earlier_runs.events_of(run, "result")[-1]
    sent = earlier_runs.events_of(run, "step")[-1]["sent_bytes"]
    return {"loss": result["validation_loss"], "seconds": result["seconds"], "bytes": sent}


def train_shards(options, rank, seed):
    return train(options, rank, seed, options.shard_ranks)


def train_locally(options, inner_steps, seed, kills=0):
    folder = options.out / f"local{inner_steps}-seed{seed}{f'-killed{kills}-{options.checkpoint_seconds:g}s' if kills else ''}"
    if not (folder / "done.json").exists():
        arguments = [*arguments_of(options, options.batch // options.workers, seed, options.local_rate), "--inner-steps", inner_steps,
                     "--sent-share", options.share, "--value-bits", options.bits, "--kept-share", options.kept,
                     "--outer-rate", options.outer[0], "--outer-momentum", options.outer[1]]
        # Undisturbed, everybody is waited for; a killed one is waited for as long as its own steps take.
        arguments += ["--checkpoint-seconds", options.checkpoint_seconds] if kills else ["--deadline", 600]
        pause = 0.0
        if kills:
            pause = 0.5 * train_locally(options, inner_steps, seed)["seconds"] / kills
        killed = local_workers.train(PROGRAM, folder, options.workers, arguments, kills, pause)
        (folder / "done.json").write_text(json.dumps({"kills": killed}))
    found = local_workers.figures(folder, options.workers, options.steps)
    return found | json.loads((folder / "done.json").read_text())


def rate_factor(options):
    """As the program has it: how much the size of steps depends on the batch."""
    return 1 if options.optimizer == "muon" else min(math.sqrt(options.workers), 3)


def parse():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--ranks", default="1,2,4,8,16")
    parser.add_argument("--inner-steps", default="8,20")
    parser.add_argument("--net", default="4,4,128")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs/compress")
    parser.add_argument("--outer", default="1,0.2")
    parser.add_argument("--local-rate", type=float)
    parser.add_argument("--bits", default="1")
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--format", choices=("f32", "1-6-9"), default="f32")
    parser.add_argument("--start", choices=("fixed", "warm"), default="fixed")
    for name, default in (("rate", 3e-3), ("share", 1 / 16), ("kept", 0.9), ("checkpoint-seconds", 5)):
        parser.add_argument(f"--{name}", type=float, default=default)
    for name, default in (("workers", 2), ("context", 128), ("steps", 500), ("batch", 16), ("seeds", 3), ("kills", 0), ("shard-ranks", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    options.local_rate = options.local_rate or options.rate * rate_factor(options)
    options.net = tuple(int(part) for part in options.net.split(","))
    options.outer = tuple(float(part) for part in options.outer.split(","))
    options.ranks = [int(part) for part in options.ranks.split(",") if part]
    if options.start == "warm" and options.shard_ranks:
        parser.error("--start warm with --shard-ranks: factors of shards begin with fixed ones")
    options.inner_steps = [int(part) for part in options.inner_steps.split(",") if part]
    return options


def main():
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    names = ("workers", "net", "context", "steps", "batch", "rate", "share", "bits", "kept", "outer")
    settings = {name: getattr(options, name) for name in names} | {"data": str(options.data.resolve())}
    if options.inner_steps:
        settings["local_rate"] = options.local_rate
    if options.optimizer != "adamw":
        settings["optimizer"] = options.optimizer
    for name, usual in (("format", "f32"), ("start", "fixed")):
        if getattr(options, name) != usual:
            settings[name] = getattr(options, name)
    earlier_runs.require_same_settings(options.out, json.loads(json.dumps(settings)))
    print(f"validation loss after {options.steps} steps of {options.batch} x {options.context} tokens by {options.workers} processes, "
          f"{options.seeds} seeds")
    print(f"{'':<26}mean    smallest to largest   bytes of a step", flush=True)
    rows = []
    kinds = [("whole gradients", train, 0), *((f"factors of rank {rank}", train, rank) for rank in options.ranks),
             *((f"rank {rank}, {options.shard_ranks} shards", train_shards, rank) for rank in options.ranks
               if options.shard_ranks and rank % options.shard_ranks == 0),
             *((f"every {steps} local steps", train_locally, steps) for steps in options.inner_steps)]
    for name, make, what in kinds:
        runs = [make(options, what, seed) for seed in range(1, options.seeds + 1)]
        losses = [run["loss"] for run in runs]
        row = {"name": name, "losses": losses, "mean": statistics.mean(losses), "bytes": statistics.mean(run["bytes"] for run in runs),
               "seconds": statistics.median(run["seconds"] for run in runs)}
        rows.append(row)
        row["share_of_bytes"] = row["bytes"] / rows[0]["bytes"]
        row["within_spread"] = row["mean"] <= max(rows[0]["losses"])
        print(f"{name:<26}{row['mean']:.4f}  {min(losses):.4f} to {max(losses):.4f}      {row['bytes']:>12,.0f}  "
              f"{row['share_of_bytes']:.3%}", flush=True)
    line_chart.draw(options.out / "losses.svg", "bytes of a process in a step", "validation loss",
                    {row["name"]: [(row["bytes"], loss) for loss in row["losses"]] for row in rows}, lines=False, by_powers=True)
    print(f"picture: {options.out / 'losses.svg'}")
    aims = {}
    if options.ranks:
        good = [row["share_of_bytes"] for row in rows if row["within_spread"] and row["name"].startswith("factors")]
        aims["factors within the spread with a quarter fewer bytes"] = bool(good) and min(good) <= 0.75
    if options.inner_steps:
        good = [row["share_of_bytes"] for row in rows if row["within_spread"] and row["name"].startswith("every")]
        aims["local steps within the spread with 400 times fewer bytes"] = bool(good) and min(good) <= 1 / 400
    killed = None
    if options.kills and options.inner_steps:
        steps = options.inner_steps[0]
        runs = [train_locally(options, steps, seed, options.kills) for seed in range(1, options.seeds + 1)]
        losses = [run["loss"] for run in runs]
        killed = {"losses": losses, "mean": statistics.mean(losses), "kills": [run["kills"] for run in runs]}
        undisturbed = next(row for row in rows if row["name"] == f"every {steps} local steps")
        print(f"every {steps} local steps, kills: {killed['mean']:.4f}  {min(losses):.4f} to {max(losses):.4f}; kills of each seed: "
              f"{', '.join(map(str, killed['kills']))}")
        aims["with kills within the spread of local steps"] = killed["mean"] <= max(undisturbed["losses"])
    print(json.dumps({"workers": options.workers, "steps": options.steps, "rows": rows, "killed": killed, "aims": aims}))


main()
