#!/usr/bin/env python3
"""Every op of the float engine: Bitloom's backend "cpu" against PyTorch on the same cores.

ops_peers.py BITLOOM_BENCH_OPS [--rounds N] [--threads N] [--dtype f32|bf16] [--op PART] [--cpu-time]: for each op of bench/op_workloads.h,
which the program checks against its reference first, slots of 50 ms go in turns to Bitloom, to PyTorch (bench/ops_torch.py) and
to what bounds the op: oneDNN's product of square matrices, or copying as many bytes. In a slot the fastest pass counts.
Prints per op the medians over the rounds of: milliseconds, the share of the bound, PyTorch's time over ours. The last line is
JSON with all of them.
"""
import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import time

SLOT = 0.05  # seconds, as bench/ops.cpp
LEAST = 0.8  # of PyTorch's speed, that every op should have


def keep_memory():
    """Has the C library give freed memory out again instead of back to the system, as Bitloom's pool does: otherwise PyTorch
    would spend much of its time on fresh pages. No fault if this is another C library."""
    m_trim_threshold, m_mmap_max = -1, -4
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    mallopt(m_mmap_max, 0)
    mallopt(m_trim_threshold, 2**31 - 1)


class Program:
    """bitloom_bench_ops --serve."""

    def __init__(self, path, threads, cpu_time):
        command = [path, "--serve", *(["--threads", str(threads)] if threads else []), *(["--cpu-time"] if cpu_time else [])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        reply = self.process.stdout.readline()
        if not reply:
            sys.exit(f"{self.process.args[0]} ended with {self.process.wait()}")
        return json.loads(reply)


def fastest(run_pass, clock):
    start = before = clock()
    best = None
    while best is None or before - start < SLOT:
        run_pass()
        now = clock()
        best = now - before if best is None else min(best, now - before)
        before = now
    return best


def measure(program, number, dtype, run_pass, rounds, clock):
    """Medians over the rounds; one more goes before, not counted."""
    error = program.ask("open", number, dtype)["error"]
    if error:
        sys.exit(f"op {number}, {dtype}: {error}")
    turns = []
    for _ in range(rounds + 1):
        turns.append((program.ask("ours"), fastest(run_pass, clock), program.ask("bound")))
    turns = turns[1:]
    return {"milliseconds": 1e3 * statistics.median(ours for ours, _, _ in turns),
            "share_of_bound": statistics.median(bound / ours for ours, _, bound in turns),
            "vs_torch": statistics.median(theirs / ours for ours, theirs, _ in turns)}


def main():
    parser = argparse.ArgumentParser(description="Compares the ops of Bitloom's float engine with PyTorch's.")
    parser.add_argument("program", help="bitloom_bench_ops")
    parser.add_argument("--rounds", type=int, default=5, help="turns per op (default: 5)")
    parser.add_argument("--threads", type=int, help="of both (default: all cores)")
    parser.add_argument("--dtype", choices=["f32", "bf16"], help="default: both, if the CPU multiplies bf16")
    parser.add_argument("--cpu-time", action="store_true",
                        help="count time on a processor: for --threads 1 on a machine that has other work")
    parser.add_argument("--op", default="", metavar="PART", help="only ops with this in their names")
    arguments = parser.parse_args()
    if arguments.rounds < 1 or (arguments.threads is not None and arguments.threads < 1):
        parser.error("--rounds and --threads must be at least 1")
    if arguments.cpu_time and arguments.threads != 1:
        parser.error("--cpu-time needs --threads 1")
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    keep_memory()
    import torch
    from ops_torch import passes

    program = Program(arguments.program, arguments.threads, arguments.cpu_time)
    about = program.ask("list")
    torch.set_num_threads(about["threads"])
    torch.manual_seed(1)
    theirs = passes()
    missing = {op["name"] for op in about["ops"]} ^ theirs.keys()
    if missing:
        sys.exit(f"ops that only one side has: {', '.join(sorted(missing))}")
    print(f"{about['cpu']}\nPyTorch {torch.__version__}; {about['threads']} threads; medians of {arguments.rounds} rounds")
    print(f"\n{'op':<28}{'type':<6}{'ms':>10}{'of the bound':>22}{'PyTorch / ours':>17}")
    rows = []
    for dtype, torch_dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        if arguments.dtype not in (None, dtype):
            continue
        if dtype == "bf16" and not about["bf16"]:
            print("bf16 is left out: this CPU does not multiply it")
            continue
        for number, op in enumerate(about["ops"]):
            if arguments.op not in op["name"]:
                continue
            row = measure(program, number, dtype, theirs[op["name"]](torch_dtype), arguments.rounds, clock)
            mark = "" if row["vs_torch"] >= LEAST else f"  below {LEAST}"
            print(f"{op['name']:<28}{dtype:<6}{row['milliseconds']:>10.3f}{100 * row['share_of_bound']:>11.0f}% of {op['bound']:<7}"
                  f"{row['vs_torch']:>16.2f}x{mark}", flush=True)
            rows.append({"op": op["name"], "dtype": dtype, "bound": op["bound"], **row})
    slowest = min((row for row in rows), key=lambda row: row["vs_torch"], default=None)
    if slowest:
        print(f"slowest beside PyTorch: {slowest['op']}, {slowest['dtype']}, {slowest['vs_torch']:.2f}x")
    print(json.dumps({"least_vs_torch": slowest and slowest["vs_torch"], "ops": rows, "cpu": about["cpu"],
                      "threads": about["threads"], "versions": f"PyTorch {torch.__version__}"}))


if __name__ == "__main__":
    main()
