#!/usr/bin/env python3
"""Training steps of GPTs: Bitloom against PyTorch, eager and compiled, on the same cores.

gpt_peers.py BITLOOM_BENCH_GPT [--nets ...] [--dtypes ...] [--peers ...] [--rounds N] [--threads N] [--dropout P] [--cpu-time]:
each contender is a process of its own that trains when it is told to. First all start from Bitloom's initial weights and see the
same texts: the losses of the first steps must agree. Then they take turns; ratios are medians of the rounds' own ratios. Prints
a table; the last line is JSON. PyTorch gets what its users give it: scaled_dot_product_attention, fused AdamW, weights as its
Linear stores them, and for bf16 its autocast, which keeps sums of blocks, layer norms and parameters in f32; Bitloom has sums of
blocks in bf16.
"""
import argparse
import json
import pathlib
import sys
import tempfile
import time

import peers
from peers import Contender, resident_peak

# Net -> layers, heads, width, vocabulary, sequences of a step, tokens of each, steps of a turn. The vocabulary of 50257 is
# padded to 50304 for all alike; tokens of bytes and an end are 257, which Bitloom pads to 384 rows by itself. What follows a
# slash in a name tells apart steps of other sizes of one net.
NETS = {
    "tiny": (4, 4, 128, 257, 8, 256, 16),
    "small": (6, 6, 384, 257, 8, 256, 3),
    "gpt2-124m": (12, 12, 768, 50304, 4, 256, 1),
    "gpt2-124m/64": (12, 12, 768, 50304, 4, 64, 1),
}
# Tokens per second that others publish for a step of the same size, in f32, on machines of their own: no ratio is formed.
# llm.c: its README shows steps of 4 x 64 tokens of 1289 to 1452 ms, the last of 40 in 1324 ms.
PUBLISHED = {"gpt2-124m/64": {"who": "llm.c, train_gpt2.c with 8 threads on an Apple M3 Max", "tokens_per_second": [176, 199]}}
CHECKED_STEPS = 3
TOLERANCES = {"f32": 1e-4, "bf16": 2e-2}  # of losses


# --- The PyTorch process ---


def read_tensors(path):
    """Name -> function that reads the array of a safetensors file, so that one is in memory at a time."""
    import numpy

    types = {"F32": numpy.float32, "I32": numpy.int32}
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)

    def reader(entry):
        begin, end = entry["data_offsets"]
        dtype = numpy.dtype(types[entry["dtype"]])
        count = (end - begin) // dtype.itemsize
        return lambda: numpy.fromfile(path, dtype, count, offset=8 + size + begin).reshape(entry["shape"])

    return {name: reader(entry) for name, entry in header.items()}


def make_net(torch, sizes, dropout):
    """Gives the module: (inputs, targets) -> mean loss; and pairs of its parameters and their names in Bitloom's file."""
    functional = torch.nn.functional
    layers, heads, width, vocabulary, _, tokens = sizes

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1 = torch.nn.LayerNorm(width)
            self.qkv = torch.nn.Linear(width, 3 * width)
            self.projection = torch.nn.Linear(width, width)
            self.norm2 = torch.nn.LayerNorm(width)
            self.first = torch.nn.Linear(width, 4 * width)
            self.second = torch.nn.Linear(4 * width, width)

        def forward(self, x):
            parts = self.qkv(self.norm1(x)).split(width, dim=2)
            q, k, v = (part.view(*x.shape[:2], heads, width // heads).transpose(1, 2) for part in parts)
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
            x = x + functional.dropout(self.projection(mixed.transpose(1, 2).reshape(x.shape)), dropout)
            inside = functional.gelu(self.first(self.norm2(x)), approximate="tanh")
            return x + functional.dropout(self.second(inside), dropout)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = torch.nn.Embedding(vocabulary, width)
            self.positions = torch.nn.Embedding(tokens, width)
            self.blocks = torch.nn.ModuleList(Block() for _ in range(layers))
            self.norm = torch.nn.LayerNorm(width)
            self.register_buffer("numbers", torch.arange(tokens), persistent=False)

        def forward(self, inputs, targets):
            x = functional.dropout(self.tokens(inputs) + self.positions(self.numbers), dropout)
            for block in self.blocks:
                x = block(x)
            logits = functional.linear(self.norm(x), self.tokens.weight)
            return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    module = Net()
    pairs = [(module.tokens.weight, "embedding.tokens"), (module.positions.weight, "embedding.positions")]
    pairs += [(module.norm.weight, "norm.gain"), (module.norm.bias, "norm.bias")]
    for i, block in enumerate(module.blocks):
        attention, feed_forward = f"blocks.{i}.attention", f"blocks.{i}.feed_forward"
        for norm, name in ((block.norm1, attention), (block.norm2, feed_forward)):
            pairs += [(norm.weight, f"{name}.norm.gain"), (norm.bias, f"{name}.norm.bias")]
        for linear, name in (
            (block.qkv, f"{attention}.qkv"),
            (block.projection, f"{attention}.projection"),
            (block.first, f"{feed_forward}.first"),
            (block.second, f"{feed_forward}.second"),
        ):
            pairs += [(linear.weight, f"{name}.weight"), (linear.bias, f"{name}.bias")]
    return module, pairs


def copy_parameters(torch, pairs, tensors):
    with torch.no_grad():
        for parameter, name in pairs:
            values = torch.from_numpy(tensors[name]())
            if name.endswith(".weight"):
                values = values.T  # (inputs, outputs) in Bitloom
            parameter.copy_(values[: parameter.shape[0]])  # without the rows that pad the vocabulary


def make_optimizer(torch, pairs):
    """AdamW that leaves vectors without decay, fused where this version can on the device."""
    groups = [
        {"params": [p for p, _ in pairs if p.ndim == 2], "weight_decay": 0.1},
        {"params": [p for p, _ in pairs if p.ndim == 1], "weight_decay": 0.0},
    ]
    options = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8}
    try:
        return torch.optim.AdamW(groups, fused=True, **options), "fused AdamW"
    except RuntimeError:
        return torch.optim.AdamW(groups, foreach=True, **options), "foreach AdamW"


def torch_worker(sizes, dtype, kind, path, dropout, threads, device):
    """Answers each line "steps N" as bitloom_bench_gpt does. Without a path: from weights and texts of its own."""
    import torch

    torch.set_num_threads(threads)
    module, pairs = make_net(torch, sizes, dropout)
    _, _, _, vocabulary, sequences, tokens = sizes
    if path:
        tensors = read_tensors(path)
        copy_parameters(torch, pairs, tensors)
        batches = torch.from_numpy(tensors["batches"]()).long()
    else:
        batches = torch.randint(vocabulary, (4, sequences, tokens + 1))
    module, batches = module.to(device), batches.to(device)
    optimizer, name = make_optimizer(torch, pairs)
    run = torch.compile(module) if kind == "compile" else module
    done = 0

    def step():
        batch = batches[done % len(batches)]
        with torch.autocast(device.split(":")[0], dtype=torch.bfloat16, enabled=dtype == "bf16"):
            loss = run(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    print(json.dumps({"version": torch.__version__, "optimizer": name}), flush=True)
    for line in sys.stdin:
        result = {"losses": [], "seconds": [], "processor_seconds": []}
        for _ in range(int(line.split()[1])):
            start, processor_start = time.perf_counter(), time.process_time()
            result["losses"].append(step())
            result["seconds"].append(time.perf_counter() - start)
            result["processor_seconds"].append(time.process_time() - processor_start)
            done += 1
        result["resident_peak"] = resident_peak()
        if device != "cpu":
            result["pool_peak"] = torch.cuda.max_memory_allocated()
            result["pool_reserved"] = torch.cuda.max_memory_reserved()
        print(json.dumps(result), flush=True)


# --- The side that gives turns ---


def bitloom_command(program, net, sizes, dtype, dropout, device="cpu", bits=0):
    _, _, _, vocabulary, sequences, tokens = sizes
    few_bits = (bits,) if bits else ()
    return [str(each) for each in (program, net.split("/")[0], dtype, vocabulary, sequences, tokens, dropout, device, *few_bits)]


def torch_command(sizes, dtype, kind, path, dropout, threads, device="cpu"):
    return [sys.executable, __file__, "--worker", json.dumps([sizes, dtype, kind, path, dropout, threads, device])]


def start_peers(arguments, net, dtype, path):
    """Kind -> contender."""
    contenders = {}
    for kind in arguments.peers:
        command = torch_command(NETS[net][:6], dtype, kind, path, arguments.dropout, arguments.threads)
        contenders[kind] = Contender(command, arguments.threads, quiet=kind == "compile")
    return contenders


def measure(arguments, net, dtype):
    """One net in one format: medians and ratios."""
    steps = NETS[net][-1]
    tokens = NETS[net][4] * NETS[net][5]
    command = bitloom_command(arguments.program, net, NETS[net][:6], dtype, arguments.dropout)
    with tempfile.TemporaryDirectory() as folder:
        path = str(pathlib.Path(folder) / "start.safetensors")
        peers.save_start(command, path, arguments.threads)
        contenders = {"bitloom": Contender(command, arguments.threads), **start_peers(arguments, net, dtype, path)}
        tolerance = TOLERANCES[dtype] if arguments.dropout == 0 else float("inf")
        losses, missing = peers.check_losses(contenders, f"{net} {dtype}", CHECKED_STEPS, lambda a, b: abs(a - b), tolerance)
    turns = peers.take_turns(contenders, steps, tokens, arguments.rounds, "processor_" if arguments.cpu_time else "")
    row = {"net": net, "dtype": dtype, "tokens_per_second": turns.pop("rate"), **turns, "first_losses": losses,
           "missing": missing, "published": PUBLISHED.get(net) if dtype == "f32" else None}
    return row, contenders["bitloom"].description, peers.versions_of(contenders)


def show(row):
    peers.show_row(row, row["tokens_per_second"])
    if row["published"]:
        low, high = row["published"]["tokens_per_second"]
        print(f"  published, on another machine: {low} to {high} tokens/s ({row['published']['who']})", flush=True)


def main():
    parser = argparse.ArgumentParser(description="Compares Bitloom's training steps of GPTs with PyTorch's.")
    peers.add_options(parser, "bitloom_bench_gpt", ",".join(NETS), NETS)
    parser.add_argument("--dropout", type=float, default=0, help="losses are compared only without (default: %(default)s)")
    parser.add_argument("--cpu-time", action="store_true", help="time of the processor: with one thread, for busy machines")
    arguments = parser.parse_args()
    if arguments.cpu_time and arguments.threads != 1:
        parser.error("--cpu-time: threads that wait take time of the processor too; expected --threads 1")
    rows, ours, versions = peers.measure_all(
        parser, arguments, NETS, TOLERANCES, lambda net, dtype: measure(arguments, net, dtype), show,
        lambda ours, versions: peers.show_head(ours, versions, "tokens", f"; dropout {arguments.dropout}"))
    ratios = {f"gpt_vs_torch_{kind}_{row['net']}_{row['dtype']}": ratio for row in rows for kind, ratio in row["ratio"].items()}
    print(json.dumps({**ratios, "rows": rows, "threads": arguments.threads, "dropout": arguments.dropout, "cpu": ours["cpu"],
                      "versions": versions}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        torch_worker(*json.loads(sys.argv[2]))
    else:
        main()
