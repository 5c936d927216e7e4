#!/usr/bin/env python3
"""links.py [--hosts N] [--links RATE/LATENCY,...] [--staleness N,...] [--pace SECONDS] [--bytes-per-update BYTES] [--ddp PYTHON]

How fast updates follow one another on slow links, as a share of what they do on unlimited ones, and what `bitloom plan` says of
it. The hosts are network namespaces of this machine, connected by a switch that keeps a rate (Mbit/s, each way) and a delay
(ms, one way); every host carries an equal share of 64 logical workers, and its computing for an update takes --pace seconds, as
on a slower machine, so that they do not compete for this one's cores. Needs root. PYTHON: an interpreter that has PyTorch;
trains a net of the same gradients with DistributedDataParallel on Gloo at the same pace beside it. Last line: JSON.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/hosts"))
from hosts import AGENT, BIN, Hosts  # noqa: E402

PROGRAM = BIN / "bitloom"
WORKERS, BATCH, UPDATES, EPOCHS = 64, 128, 10, 14  # updates per epoch
SETTLED = 8  # epochs until messages have the length that is asked for: these are not timed
WARMUP = 12  # updates of heads alone, a tenth as in short runs


def training(arguments, staleness):
    """Options that the plan and the run share."""
    return ["--net", "cifar-small", "--set", "layer2.epochs=1", "--set", f"layer1.epochs={EPOCHS}", "--data",
            arguments.data, "--max-train", UPDATES * BATCH, "--validation", 0, "--max-test", 100, "--batch", BATCH,
            "--warmup-steps", WARMUP, "--workers", WORKERS, "--exchange", "sparse", "--bytes-per-update",
            arguments.bytes_per_update, "--statistics-every", 32, "--staleness", staleness, "--pace", arguments.pace]


def run(command, **options):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def transmitted(hosts):
    """Bytes that have left the hosts' network devices."""
    total = 0
    for name in hosts.names:
        total += int(run(["ip", "netns", "exec", name, "cat", "/sys/class/net/net0/statistics/tx_bytes"]))
    return total


def train(arguments, link, staleness):
    """Of the first stage: seconds per update and bytes on the wire in its middle, bytes of messages in each epoch."""
    megabits, milliseconds = link
    with Hosts(arguments.hosts, megabits, milliseconds) as hosts:
        out = hosts.folder / "run"
        process = hosts.start(
            [PROGRAM, "launch", "--hostfile", hosts.hostfile(), "--agent", AGENT, "--interface", "net0",
             "--min-workers", arguments.hosts, "--", "train", "binary", *training(arguments, staleness), "--cache", "none",
             "--checkpoint-seconds", 1e6, "--watchdog-seconds", 120, "--out", out],
            stdout=open(hosts.folder / "log", "w"), stderr=subprocess.STDOUT)
        metrics = out / "metrics.jsonl"
        wire = {}
        while process.poll() is None:
            epochs = metrics.read_text().count('"event":"epoch"') if metrics.exists() else 0
            if epochs in (SETTLED, EPOCHS - 1) and epochs not in wire:
                wire[epochs] = transmitted(hosts)
            if epochs > EPOCHS:
                break  # the second stage
            time.sleep(0.02)
        if process.poll() is None:
            process.terminate()
            process.wait()
        elif process.returncode != 0:
            sys.exit((hosts.folder / "log").read_text())
        events = [json.loads(line) for line in metrics.read_text().splitlines()]
        epochs = [event for event in events if event["event"] == "epoch"][:EPOCHS]
        seconds = [BATCH / epoch["images_per_second"] for epoch in epochs[SETTLED:-1]]
        computing = statistics.median(max(epoch["exchange"]["ranks"]["compute_microseconds"]) for epoch in epochs)
        if computing > 1.1e6 * arguments.pace * UPDATES:
            print(f"warning: computing took {computing / 1e6 / UPDATES:.3f} s, not {arguments.pace:g}; choose a longer --pace")
        shutil.rmtree(hosts.folder, True)
        return {"seconds": statistics.mean(seconds), "wire": (wire[EPOCHS - 1] - wire[SETTLED]) / (UPDATES * (EPOCHS - 1 - SETTLED)),
                "levels": [[level["sent_up"] for level in epoch["exchange"]["levels"]] for epoch in epochs],
                "replies": [round(epoch["exchange"]["bytes_per_reply"] * UPDATES) for epoch in epochs]}


def plan(arguments, link, staleness):
    """What is predicted of the same."""
    megabits, milliseconds = link
    file = ROOT / "build/links-plan.json"
    # Without a limit: as fast as memory.
    rate = f"{megabits:g}Mbit/{milliseconds:g}ms" if megabits else "10Gbit/50us"
    run([PROGRAM, "plan", *training(arguments, staleness), "--stage", "layer1", "--hosts", arguments.hosts, "--link", rate,
         "--jitter", 0, "--updates", UPDATES * EPOCHS, "--json", file])
    stage = json.loads(file.read_text())["stages"][0]
    updates = stage["measured"]["updates"]
    epochs = [updates[first:first + UPDATES] for first in range(0, len(updates), UPDATES)]
    return {"seconds": stage["modelled"]["sparse"]["update_seconds"],
            "levels": [[sum(column) for column in zip(*(update["level_bytes"] for update in epoch))] for epoch in epochs],
            "replies": [sum(update["reply_bytes"] for update in epoch) for epoch in epochs],
            "dense_f32_bytes": stage["measured"]["dense_f32_bytes"]}


def ddp(arguments, link, parameters):
    """Seconds per update of PyTorch's DistributedDataParallel, and bytes on the wire."""
    megabits, milliseconds = link
    with Hosts(arguments.hosts, megabits, milliseconds) as hosts:
        processes = [
            hosts.start([arguments.ddp, ROOT / "bench/links_ddp.py", rank, arguments.hosts, hosts.addresses[0], parameters,
                         arguments.pace], host=rank, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for rank in range(arguments.hosts)]
        wire = []
        for line in processes[0].stdout:
            if line.startswith("counting"):
                wire.append(transmitted(hosts))
            else:
                result = json.loads(line)
        for process in processes:
            if process.wait() != 0:
                sys.exit(process.stderr.read())
        shutil.rmtree(hosts.folder, True)
        return {"seconds": result["seconds"], "wire": (wire[1] - wire[0]) / result["updates"]}


def parse_link(text):
    rate, _, latency = text.partition("/")
    return float(rate), float(latency or 0)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--links", default="100/0,100/20,100/100,10/20,10/100,1/20,1/100")
    parser.add_argument("--staleness", default="0,1,2")
    parser.add_argument("--pace", type=float, default=0.25)
    parser.add_argument("--bytes-per-update", default="3KiB")
    parser.add_argument("--data", default=os.environ.get("BITLOOM_DATA", "data") + "/cifar-10-batches-bin")
    parser.add_argument("--ddp")
    arguments = parser.parse_args()
    stalenesses = [int(text) for text in arguments.staleness.split(",")]
    print(f"{arguments.hosts} hosts, {WORKERS} workers, {BATCH} images and {arguments.pace:g} s of computing per update")
    print("link                staleness  s/update   of unlimited  planned s (error)  bytes on wire  bytes of messages as planned")
    rows = []
    free = {staleness: train(arguments, (0, 0), staleness) for staleness in stalenesses}
    free_ddp = None
    parameters = 0
    for link in [(0, 0), *map(parse_link, arguments.links.split(","))]:
        name = f"{link[0]:g} Mbit/s, {link[1]:g} ms" if link[0] else "unlimited"
        for staleness in stalenesses:
            real = free[staleness] if link == (0, 0) else train(arguments, link, staleness)
            planned = plan(arguments, link, staleness)
            parameters = int(planned["dense_f32_bytes"] / 4)
            exact = real["levels"] == planned["levels"] and real["replies"] == planned["replies"]
            row = {"link": name, "contender": "bitloom", "staleness": staleness, "seconds": real["seconds"],
                   "share": free[staleness]["seconds"] / real["seconds"], "planned_seconds": planned["seconds"],
                   "error": planned["seconds"] / real["seconds"] - 1, "wire_bytes": real["wire"], "bytes_as_planned": exact}
            rows.append(row)
            print(f"{name:<20}{staleness:>9}{row['seconds']:>10.3f}{100 * row['share']:>14.1f}%{row['planned_seconds']:>11.3f} "
                  f"({100 * row['error']:+.0f}%){row['wire_bytes']:>14.0f}  {exact}", flush=True)
        if arguments.ddp:
            result = ddp(arguments, link, parameters)
            free_ddp = free_ddp or result
            rows.append({"link": name, "contender": "PyTorch DDP", "seconds": result["seconds"],
                         "share": free_ddp["seconds"] / result["seconds"], "wire_bytes": result["wire"]})
            print(f"{name:<20}{'DDP':>9}{result['seconds']:>10.3f}{100 * rows[-1]['share']:>14.1f}%{'':>18}"
                  f"{result['wire']:>14.0f}", flush=True)
    print(json.dumps({"hosts": arguments.hosts, "workers": WORKERS, "batch": BATCH, "pace": arguments.pace, "rows": rows}))


if __name__ == "__main__":
    main()
