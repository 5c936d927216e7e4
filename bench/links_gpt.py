#!/usr/bin/env python3
"""links_gpt.py --data FILE [--hosts N] [--links RATE/LATENCY,...] [--pace SECONDS] [--rounds N] [--delay STEPS] [--peers PYTHON]
[--contenders NAMES]

How fast a GPT of 11 million parameters is trained in local steps on slow links, as a share of what it is on unlimited ones. The
hosts are those of links.py, one worker on each; a step takes --pace seconds, as one of some 2,000 tokens does on two ordinary
cores, of which this machine has not as many as there are hosts: the steps that it makes have 64 tokens. The time is that of all
rounds but the first. What is learned must be the same to the bit on all links. PYTHON: an interpreter that has PyTorch and torchft;
beside it gradients of as many parameters, in matrices of the same sizes, go through DistributedDataParallel ("ddp"), the same with
its PowerSGD hook ("powersgd") and torchft's DiLoCo ("diloco"), on Gloo at the same pace. Needs root. Last line: JSON.
"""
import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import time

from links import PROGRAM, ROOT, Hosts, parse_link, transmitted

INNER = 30  # steps of a worker between two messages
NET = ["--net", "small", "--context", 64, "--batch", 1]


def bitloom(arguments, link, text):
    megabits, milliseconds = link
    steps = INNER * (arguments.rounds + 1)
    with Hosts(arguments.hosts, megabits, milliseconds) as hosts:
        out = hosts.folder / "run"
        process = hosts.mpirun(
            [PROGRAM, "train", "gpt", "--data", text, *NET, "--steps", steps, "--dropout", 0, "--exchange", "local",
             "--inner-steps", INNER, "--value-bits", 2, "--delay", arguments.delay, "--quorum", 1, "--pace", arguments.pace,
             "--evaluate-every", 10**6, "--evaluate-sequences", 1, "--checkpoint-seconds", 10**6, "--keep", "last", "--out", out],
            stdout=open(hosts.folder / "log", "w"), stderr=subprocess.STDOUT)
        metrics = out / "metrics.jsonl"
        marks = []  # when a round was over, and bytes on the wire by then
        while process.poll() is None:
            rounds = metrics.read_text().count('"event":"exchange"') if metrics.exists() else 0
            if rounds > len(marks):
                marks.append((time.monotonic(), transmitted(hosts)))
            time.sleep(0.05)
        if process.returncode != 0:
            sys.exit((hosts.folder / "log").read_text())
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        exchanges = [line for line in lines if line["event"] == "exchange"]
        model = hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
        shutil.rmtree(hosts.folder, True)
        rounds = len(marks) - 2  # the last one is over at once, without the delay
        return {"seconds": (marks[-2][0] - marks[0][0]) / (rounds * INNER), "wire": (marks[-2][1] - marks[0][1]) / (rounds * INNER),
                "waited": [round(line["waited_seconds"], 2) for line in exchanges], "message": exchanges[1]["sent_bytes"],
                "reply": exchanges[1]["received_bytes"], "model": model}


def peer(arguments, link, rival):
    megabits, milliseconds = link
    with Hosts(arguments.hosts, megabits, milliseconds) as hosts:
        processes = [
            hosts.start([arguments.peers, ROOT / "bench/links_gpt_peers.py", rival, rank, arguments.hosts, hosts.addresses[rank],
                         hosts.addresses[0], arguments.pace, INNER], host=rank, stdout=subprocess.PIPE,
                        stderr=open(hosts.folder / f"log{rank}", "w"), text=True)
            for rank in range(arguments.hosts)]
        wire, result = [], None
        for line in processes[0].stdout:
            if line.startswith("counting"):
                wire.append(transmitted(hosts))
            else:
                result = json.loads(line)
        for rank, process in enumerate(processes):
            if process.wait() != 0:
                sys.exit((hosts.folder / f"log{rank}").read_text())
        shutil.rmtree(hosts.folder, True)
        return {"seconds": result["seconds"], "wire": (wire[1] - wire[0]) / result["steps"]}


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--links", default="100/20,10/100")
    parser.add_argument("--pace", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--delay", type=int, default=20)
    parser.add_argument("--data", required=True)
    parser.add_argument("--peers")
    parser.add_argument("--contenders", default="bitloom,ddp,powersgd,diloco")
    arguments = parser.parse_args()
    print(f"{arguments.hosts} hosts, {arguments.pace:g} s of computing a step, {INNER} steps between messages")
    print(f"{'link':<20}{'contender':<12}s/step   of unlimited   bytes on wire a step   s waited by round")
    rows, free, model = [], {}, None
    contenders = [name for name in arguments.contenders.split(",") if name == "bitloom" or arguments.peers]
    for link in [(0, 0), *map(parse_link, filter(None, arguments.links.split(",")))]:
        name = f"{link[0]:g} Mbit/s, {link[1]:g} ms" if link[0] else "unlimited"
        for contender in contenders:
            measured = bitloom(arguments, link, arguments.data) if contender == "bitloom" else peer(arguments, link, contender)
            free.setdefault(contender, measured["seconds"])
            if contender == "bitloom":
                model = model or measured["model"]
                measured["same_model"] = measured.pop("model") == model
            row = {"link": name, "contender": contender, "share": free[contender] / measured["seconds"], **measured}
            rows.append(row)
            print(f"{name:<20}{contender:<12}{row['seconds']:<9.3f}{100 * row['share']:>10.1f}%{row['wire']:>20.0f}      "
                  f"{row.get('waited', '')}", flush=True)
    print(json.dumps({"hosts": arguments.hosts, "pace": arguments.pace, "inner_steps": INNER, "delay": arguments.delay, "rows": rows}))
    if not all(row.get("same_model", True) for row in rows):
        sys.exit("links_gpt.py: the model depends on the link")


if __name__ == "__main__":
    main()
