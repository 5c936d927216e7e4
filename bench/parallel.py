#!/usr/bin/env python3
"""parallel.py [counts] [hosts] [--torch PYTHON] [--steps N]

Trains GPTs in grids of processes and sets what they counted beside what `bitloom plan` says of them.

counts: bytes, sums, stashes, memory, bubbles and losses, by processes of this machine.
hosts: seconds of a step on four hosts with links of 1 Gbit/s each way, which are network namespaces of this machine (needs
root), and how much of the sums of gradients is hidden behind the backward pass; and with two processes on each of two hosts on
slower links, parameters being divided among all or among those of a host. PYTHON: an interpreter that has PyTorch; trains the same
net by its DistributedDataParallel and its FSDP2 on Gloo on the four hosts.

In both, every layer takes as long as on ranks of a given speed (bench/parallel.cpp), so that processes do not compete for the
cores of this machine. Without a part, both. Last line: JSON, with aims.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/hosts"))
from hosts import BIN, Hosts  # noqa: E402

PROGRAM = BIN / "bitloom_bench_parallel"
GROUPS = ("data", "pipeline", "tensor")
SMALL = {"layers": 14, "heads": 8, "width": 64, "context": 32, "vocabulary": 1000, "batch": 16, "micro_batch": 2, "gflops": 0.5}
LARGE = {"layers": 6, "heads": 8, "width": 384, "context": 128, "vocabulary": 4096, "batch": 16, "micro_batch": 4, "gflops": 20,
         "link": "1Gbit/50us", "bucket_bytes": 4 << 20}
ALL_AT_ONCE = 1 << 40  # bytes of a bucket: one sum, after the backward pass
HOSTS, MEGABITS = 4, 1000
PAIRS_MEGABITS = 200
PAIRS = {"data": 4, "ranks_per_host": 2, "shard": "parameters", "gflops": 10, "link": f"{PAIRS_MEGABITS}Mbit/50us"}


def finish(process):
    out, errors = process.communicate()
    if process.returncode != 0:
        sys.exit(f"{' '.join(map(str, process.args))}\n{out}{errors}")
    return json.loads(out.splitlines()[-1])


def train(settings):
    """By processes of this machine."""
    ranks = settings.get("data", 1) * settings.get("pipeline", 1) * settings.get("tensor", 1)
    variables = {"OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                 "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
                 "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
    return finish(subprocess.Popen(["mpirun", "-n", str(ranks), PROGRAM, json.dumps(settings)], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env={**os.environ, **variables}))


def is_as_planned(result, steps):
    """Whether the ranks of every stage that sent most have sent what was planned, of every kind."""
    for stage, planned in enumerate(result["planned"]):
        ranks = [rank for rank in result["ranks"] if rank["stage"] == stage]
        for group in GROUPS:
            for kind, count in planned[group].items():
                if max(rank[group][kind] for rank in ranks) != steps * count:
                    return False
    return True


def distance(a, b):
    return max(abs(x / y - 1) for key in ("losses", "gradient_norms") for x, y in zip(a[key], b[key]))


class Aims:
    def __init__(self):
        self.all = {}

    def add(self, name, value, aim, met):
        self.all[name] = {"value": value, "aim": aim, "met": bool(met)}


def measure_counts(steps, aims):
    rows, exact = [], []

    def row(settings, alone=None):
        settings = {**SMALL, **settings, "steps": steps}
        result = train(settings)
        exact.append(is_as_planned(result, steps))
        memory = [rank["memory"] / rank["planned_memory"] for rank in result["ranks"]]
        rows.append({**{key: settings.get(key, default) for key, default in
                        (("data", 1), ("pipeline", 1), ("tensor", 1), ("schedule", "1f1b"), ("shard", "none"))},
                     "as_planned": exact[-1], "bubble": result["bubble"], "planned_bubble": result["planned_bubble"],
                     "memory_of_plan": max(memory), "difference": distance(result, alone) if alone else 0.0,
                     "bytes": {group: max(sum(rank[group].values()) for rank in result["ranks"]) // steps for group in GROUPS},
                     "stash": max(rank["stash"] for rank in result["ranks"]),
                     "planned_stash": max(rank["planned_stash"] for rank in result["ranks"])})
        r = rows[-1]
        print(f"{r['data']} x {r['pipeline']} x {r['tensor']}  {r['schedule']:<12}{r['shard']:<11}"
              f"{r['bytes']['tensor']:>11}{r['bytes']['pipeline']:>10}{r['bytes']['data']:>10}  {str(r['as_planned']):<6}"
              f"{100 * r['bubble']:>7.1f}% {100 * r['planned_bubble']:>6.1f}%{r['stash']:>11}{r['planned_stash']:>11}"
              f"{100 * r['memory_of_plan']:>8.1f}%{r['difference']:>11.1e}", flush=True)
        return result

    print("data x pipeline x tensor; bytes that a rank sends in a step, whether they are the plan's; bubble and the plan's; bytes "
          "in stashes and the plan's; memory, as a share of the plan's; difference of losses and norms to one process, of shards to none")
    print(f"{'grid':<11}{'schedule':<12}{'shard':<11}{'tensor':>11}{'pipeline':>10}{'data':>10}  {'exact':<6}{'bubble':>8} "
          f"{'plan':>7}{'stash':>11}{'plan':>11}{'memory':>9}{'differs':>11}")
    alone = row({})
    micro_batches = SMALL["batch"] // SMALL["micro_batch"]
    tensor = {}
    for ranks in (2, 4):
        result = row({"tensor": ranks}, alone)
        tensor[ranks] = distance(result, alone)
        # One for the embedding, two for the head, one for the norm.
        sums = result["ranks"][0]["tensor_sums"] / steps
        aims.add(f"sums_per_layer_tensor_{ranks}", (sums - 1 - 3 * micro_batches) / (micro_batches * SMALL["layers"]), "= 4",
                 sums == 1 + micro_batches * (4 * SMALL["layers"] + 3))
    aims.add("tensor_difference", max(tensor.values()), "<= 1e-5", max(tensor.values()) <= 1e-5)
    bubbles, pipelines = [], []
    for stages in range(2, 9):
        for schedule in ("gpipe", "1f1b", "interleaved"):
            if schedule == "interleaved" and micro_batches % stages != 0:
                continue  # which it does not have
            result = row({"pipeline": stages, "schedule": schedule}, alone)
            bubbles.append(abs(result["bubble"] - result["planned_bubble"]))
            pipelines.append(distance(result, alone))
    aims.add("pipeline_difference", max(pipelines), "<= 1e-5: the tied table's gradient is two sums", max(pipelines) <= 1e-5)
    aims.add("bubble_beside_plan", max(bubbles), "<= 0.03", max(bubbles) <= 0.03)
    whole = row({"data": 4, "micro_batch": 4})  # other examples: they follow from the micro-batch
    shards, memory = [], []
    for level in ("optimizer", "gradients", "parameters"):
        result = row({"data": 4, "micro_batch": 4, "shard": level}, whole)
        shards.append(result["losses"] == whole["losses"] and result["gradient_norms"] == whole["gradient_norms"])
        memory.append(rows[-1]["memory_of_plan"])
    aims.add("shards_same_bits", all(shards), "all levels", all(shards))
    aims.add("memory_of_shards_of_plan", memory, "<= 1.02", max(memory) <= 1.02)
    for grid in ({"data": 2, "pipeline": 2, "tensor": 2}, {"data": 2, "pipeline": 2, "tensor": 2, "shard": "parameters"}):
        row(grid, alone)
    stashes = all(r["stash"] == r["planned_stash"] for r in rows)
    aims.add("bytes_as_planned", all(exact), "all rows", all(exact))
    aims.add("stashes_as_planned", stashes, "all rows", stashes)
    return rows


def on_hosts(settings, megabits=MEGABITS):
    slots = settings.get("ranks_per_host", 1)
    with Hosts(HOSTS // slots, megabits, by_kernel=True) as hosts:
        return finish(hosts.mpirun([PROGRAM, json.dumps(settings)], slots, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))


def peer(kind, settings, python):
    with Hosts(HOSTS, MEGABITS, by_kernel=True) as hosts:
        processes = [hosts.start([python, ROOT / "bench/parallel_peer.py", kind, rank, HOSTS, hosts.addresses[0],
                                  json.dumps(settings)], host=rank, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                     for rank in range(HOSTS)]
        result = finish(processes[0])
        for process in processes[1:]:
            process.communicate()
        return statistics.median(result["seconds"])


def measure_hosts(steps, python, aims):
    rows = []
    print(f"\n{HOSTS} hosts of {LARGE['gflops']} GFLOP/s, links of {MEGABITS} Mbit/s: seconds of a step")
    print(f"{'grid':<11}{'':<24}{'measured':>10}{'planned':>10}")

    def row(name, settings, megabits=MEGABITS):
        result = on_hosts({**LARGE, **settings, "steps": steps}, megabits)
        seconds, planned = statistics.median(result["seconds"]), result["planned_seconds"]
        rows.append({**settings, "name": name, "seconds": seconds, "planned_seconds": planned, "error": seconds / planned - 1})
        grid = " x ".join(str(settings.get(axis, 1)) for axis in GROUPS)
        print(f"{grid:<11}{name:<24}{seconds:>10.3f}{planned:>10.3f} ({100 * rows[-1]['error']:+.0f}%)", flush=True)
        return result, seconds

    result, whole = row("", {"data": 4})
    for name, settings in (("shards of moments", {"data": 4, "shard": "optimizer"}),
                           ("shards of gradients", {"data": 4, "shard": "gradients"}),
                           ("shards of parameters", {"data": 4, "shard": "parameters"}), ("", {"pipeline": 4}),
                           ("interleaved", {"pipeline": 4, "schedule": "interleaved"}),
                           ("", {"data": 2, "pipeline": 2}), ("", {"tensor": 4}), ("", {"pipeline": 2, "tensor": 2}),
                           ("", {"data": 2, "tensor": 2})):
        row(name, settings)
    print(f"{HOSTS // 2} hosts of two processes of {PAIRS['gflops']} GFLOP/s, links of {PAIRS_MEGABITS} Mbit/s, parameters in shards:")
    for name, settings in (("of all processes", {}), ("of each host", {"shard_ranks": 2}),
                           ("of each host, factors", {"shard_ranks": 2, "compress_rank": 64})):
        row(name, {**PAIRS, **settings}, PAIRS_MEGABITS)
    seconds = {each["name"]: each["seconds"] for each in rows}
    share = seconds["of each host"] / seconds["of all processes"]
    aims.add("seconds_of_shards_of_hosts_over_shards_of_all", share, "< 1", share < 1)
    errors = [each["error"] for each in rows]
    aims.add("seconds_beside_plan", max(errors, key=abs), "within 20%", max(map(abs, errors)) <= 0.2)

    # Time that could be hidden: sums of all gradients but the first layer's, which its backward pass, the last one, adds to.
    at_once = statistics.median(on_hosts({**LARGE, "data": 4, "steps": steps, "bucket_bytes": ALL_AT_ONCE})["seconds"])
    layers = 3 * sum(result["forward_seconds"]) + 3 * result["head_seconds"]
    sums = at_once - layers * LARGE["batch"] / HOSTS / LARGE["micro_batch"]
    first = (LARGE["vocabulary"] + LARGE["context"]) * LARGE["width"] / result["parameters"]
    hidden = (at_once - whole) / (sums * (1 - first))
    print(f"{'4 x 1 x 1':<11}{'one sum at the end':<24}{at_once:>10.3f}\n"
          f"hidden behind the backward pass: {100 * hidden:.0f}% of what could be")
    aims.add("sums_hidden", hidden, ">= 0.8", hidden >= 0.8)
    if python:
        settings = {**LARGE, "data": 4, "steps": steps, "forward_seconds": result["forward_seconds"],
                    "head_seconds": result["head_seconds"]}
        ours = {"ddp": whole, "fsdp": next(each["seconds"] for each in rows if each.get("shard") == "parameters")}
        for kind, name in (("ddp", "PyTorch DDP"), ("fsdp", "PyTorch FSDP2")):
            seconds = peer(kind, settings, python)
            rows.append({"name": name, "data": 4, "seconds": seconds})
            print(f"{'4 x 1 x 1':<11}{name:<24}{seconds:>10.3f}", flush=True)
            aims.add(f"{kind}_seconds_over_ours", seconds / ours[kind], ">= 1", seconds >= ours[kind])
    return rows


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("parts", nargs="*", metavar="counts|hosts")
    parser.add_argument("--torch")
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    parts = arguments.parts or ["counts", "hosts"]
    if unknown := set(parts) - {"counts", "hosts"}:
        parser.error(f"{', '.join(sorted(unknown))}: expected counts or hosts")
    aims = Aims()
    summary = {"steps": arguments.steps}
    if "counts" in parts:
        summary["counts"] = measure_counts(arguments.steps, aims)
    if "hosts" in parts:
        summary["hosts"] = measure_hosts(arguments.steps, arguments.torch, aims)
    print(json.dumps({**summary, "aims": aims.all}))


if __name__ == "__main__":
    main()
