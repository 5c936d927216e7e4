#!/usr/bin/env python3
"""Whole training steps of one binary layer: Bitloom against PyTorch, and larq where it is, on the same cores.

step_peers.py BITLOOM_BENCH_STEP [--rounds N] [--steps N] [--larq PYTHON]: runs the program bitloom_bench_step and, in turns with
it, the same layers in PyTorch: input bits as +1 and -1 (the layer below is frozen, so no gradient flows into them), 3x3
convolution with the signs of latent weights, batch norm, sign, linear head on averages over a 4x4 grid, cross entropy,
straight-through gradients, Adam; channels-last, in f32 and under bf16 autocast. PYTHON, an interpreter that has larq, does the
same in f32 by bench/step_larq.py. Prints a table; the last line is JSON with the ratios of time per step.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

# As bench/step.cpp: layer, input channels, output channels, pixels on a side.
LAYERS = [("conv128", 128, 256, 32), ("conv256", 256, 512, 16)]
BATCH, CLASSES, GRID = 128, 10, 4


def make_step(torch, channels, width, size, bf16):
    """A function that does one training step and returns the loss as a number."""

    class Sign(torch.autograd.Function):
        """Sign forward; backward the gradient passes where |x| <= 1 (straight-through, Hubara et al. 2016)."""

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return gradient * (x.abs() <= 1).to(gradient.dtype)

    torch.manual_seed(1)
    dtype = torch.bfloat16 if bf16 else torch.float32
    signs = torch.randint(0, 2, (BATCH, channels, size, size)).to(dtype) * 2 - 1
    images = signs.to(memory_format=torch.channels_last)
    labels = torch.randint(0, CLASSES, (BATCH,))
    weight = torch.nn.Parameter((0.1 * torch.randn(width, channels, 3, 3)).to(memory_format=torch.channels_last))
    norm = torch.nn.BatchNorm2d(width)
    head = torch.nn.Linear(width * GRID * GRID, CLASSES)
    optimiser = torch.optim.Adam([weight, *norm.parameters(), *head.parameters()], lr=1e-3)

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            maps = torch.nn.functional.conv2d(images, Sign.apply(weight), padding=1)
            bits = Sign.apply(norm(maps))
            cells = torch.nn.functional.adaptive_avg_pool2d(bits, GRID)
            loss = torch.nn.functional.cross_entropy(head(cells.flatten(1)), labels)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        return float(loss.detach())

    return step


def step_milliseconds(step, steps, uncounted, what):
    """Of each of some steps, after the uncounted ones; `what` names who steps if it does not train."""
    losses, times = [step() for _ in range(uncounted)], []
    for _ in range(steps):
        start = time.perf_counter()
        losses.append(step())
        times.append(1e3 * (time.perf_counter() - start))
    if not losses[-1] < losses[0]:
        sys.exit(f"{what} does not train: loss {losses[0]} became {losses[-1]}")
    return times


def bitloom_milliseconds(program):
    """Layer -> milliseconds per step, and the program's JSON."""
    result = json.loads(subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    return {layer["layer"]: layer["milliseconds"] for layer in result["layers"]}, result


def larq_milliseconds(python, threads, steps):
    """Layer -> milliseconds of each step, and the program's JSON."""
    script = pathlib.Path(__file__).with_name("step_larq.py")
    command = [python, str(script), str(threads), str(steps)]
    result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])
    return result["milliseconds"], result


def main():
    parser = argparse.ArgumentParser(description="Compares Bitloom's training step with PyTorch's and larq's.")
    parser.add_argument("program", help="bitloom_bench_step")
    parser.add_argument("--rounds", type=int, default=3, help="turns of Bitloom and PyTorch (default: 3)")
    parser.add_argument("--steps", type=int, default=3, help="counted steps of the others per turn and layer (default: 3)")
    parser.add_argument("--larq", metavar="PYTHON", help="an interpreter that has larq")
    arguments = parser.parse_args()
    if arguments.rounds < 1 or arguments.steps < 1:
        parser.error("--rounds and --steps must be at least 1")
    import torch  # takes seconds: after the command line has been checked

    types = {"f32": False, "bf16": True}
    peers = {"torch_f32": "PyTorch f32", "torch_bf16": "PyTorch bf16"}
    if arguments.larq:
        peers["larq_f32"] = "larq f32"
    times = {name: {kind: [] for kind in ("bitloom", *peers)} for name, *_ in LAYERS}
    versions = f"PyTorch {torch.__version__}"
    result = None
    for _ in range(arguments.rounds):
        ours, result = bitloom_milliseconds(arguments.program)
        torch.set_num_threads(result["threads"])
        for name, channels, width, size in LAYERS:
            times[name]["bitloom"].append(ours[name])
            for kind, bf16 in types.items():
                step = make_step(torch, channels, width, size, bf16)
                times[name][f"torch_{kind}"] += step_milliseconds(step, arguments.steps, 1, "PyTorch")
        if arguments.larq:
            theirs, larq = larq_milliseconds(arguments.larq, result["threads"], arguments.steps)
            for name, values in theirs.items():
                times[name]["larq_f32"] += values
            versions = f"PyTorch {torch.__version__}, larq {larq['larq']} on TensorFlow {larq['tensorflow']}"

    medians = {name: {kind: statistics.median(values) for kind, values in row.items()} for name, row in times.items()}
    total = {kind: sum(row[kind] for row in medians.values()) for kind in ("bitloom", *peers)}
    print(f"{result['cpu']}\n{versions}; {result['threads']} threads, batch {BATCH}; milliseconds per step")
    print(f"\n{'layer':<24}{'Bitloom':>10}" + "".join(f"{title:>19}" for title in peers.values()))
    shapes = {name: f"{channels}->{width}, {size}x{size}" for name, channels, width, size in LAYERS}
    for name, row in {**{shapes[name]: row for name, row in medians.items()}, "both": total}.items():
        ours = row["bitloom"]
        print(f"{name:<24}{ours:>10.1f}" + "".join(f"{row[kind]:>11.1f}{row[kind] / ours:>7.1f}x" for kind in peers))
    ratios = {f"step_vs_{kind}": total[kind] / total["bitloom"] for kind in peers}
    print(json.dumps({**ratios, "milliseconds": medians, "kernels": result["kernels"], "cpu": result["cpu"],
                      "threads": result["threads"], "versions": versions}))


if __name__ == "__main__":
    main()
