#!/usr/bin/env python3
"""Training steps of GPTs on a GPU: Bitloom, with and without few bits, against PyTorch.

gpu_peers.py BITLOOM_BENCH_GPT [--nets ...] [--contenders ...] [--rounds N] [--dtype T] [--device D]: the processes of
bench/gpt_peers.py, one at a time, since each gets the whole GPU. First all start from the same weights and see the same texts: the
losses of the first steps must agree. Then each doubles its sequences at once until its memory is full; with those that gave most
tokens per second it takes its turn in every round, in a process that is new each time. MFU: operations of products alone, as
Bitloom counts them, over those that the GPU's maker states, or that products of large matrices had where the GPU is not in the
table. PyTorch gets what its users give it: torch.compile, scaled_dot_product_attention, fused AdamW, autocast. Prints a table; the
last line is JSON.
"""
import argparse
import json
import pathlib
import statistics
import sys
import tempfile

from gpt_peers import CHECKED_STEPS, TOLERANCES, bitloom_command, torch_command
from peers import Contender, parse_list

# Net -> layers, heads, width, vocabulary, tokens.
NETS = {
    "gpt2-124m": (12, 12, 768, 50304, 1024),
    "gpt2-1.5b": (48, 25, 1600, 50304, 1024),
    "tiny": (4, 4, 128, 257, 256),  # to try this out
}
DEFAULT_NETS = "gpt2-124m,gpt2-1.5b"
# Name -> whose it is, bits kept of activations.
CONTENDERS = {"bitloom": ("bitloom", 0), "bitloom-4bit": ("bitloom", 4), "eager": ("torch", 0), "compile": ("torch", 0)}
CHECKED_SEQUENCES = 2
MOST_SEQUENCES = 512
STEPS = 8  # of a turn; the first ones, which compile and choose, do not count
WARM_STEPS = 3
# Products in bf16 and f16 with sums in f32, operations per second, without sparsity: NVIDIA's data sheets.
STATED_PEAKS = {"H200": 989.4e12, "H100": 989.4e12, "A100": 312e12, "L40S": 362e12, "RTX 4090": 165.2e12}


def sizes_of(net, sequences):
    layers, heads, width, vocabulary, tokens = NETS[net]
    return layers, heads, width, vocabulary, sequences, tokens


def start(arguments, name, net, sequences, path=""):
    whose, bits = CONTENDERS[name]
    sizes = sizes_of(net, sequences)
    if whose == "bitloom":
        command = bitloom_command(arguments.program, net, sizes, arguments.dtype, 0, arguments.device, bits)
    else:
        command = torch_command(sizes, arguments.dtype, name, path, 0, arguments.threads, arguments.device)
    return Contender(command, arguments.threads, quiet=True)


def check_losses(arguments, net):
    """The first losses of all, from the same weights."""
    losses = {}
    with tempfile.TemporaryDirectory() as folder:
        path = str(pathlib.Path(folder) / "start.safetensors")
        saver = start(arguments, "bitloom", net, CHECKED_SEQUENCES)
        saver.ask(f"save {path}")
        saver.end()
        for name in arguments.contenders:
            contender = start(arguments, name, net, CHECKED_SEQUENCES, path)
            losses[name] = contender.ask(f"steps {CHECKED_STEPS}")["losses"]
            contender.end()
    first = next(iter(losses.values()))
    for name, theirs in losses.items():
        apart = max(abs(a - b) for a, b in zip(theirs, first))
        # Few bits change the gradients a little, so the losses after the first.
        if not apart <= TOLERANCES["bf16" if CONTENDERS[name][1] else arguments.dtype]:
            sys.exit(f"{net}: the losses of {name} are {theirs}, those of {arguments.contenders[0]} {first}")
    return losses


def take_turn(arguments, name, net, sequences):
    """Tokens per second, what its memory was, and how it describes itself. None if it has too little memory."""
    try:
        contender = start(arguments, name, net, sequences)
        result = contender.ask(f"steps {WARM_STEPS + STEPS}")
        description = contender.description
        if CONTENDERS[name][0] == "bitloom":
            description = {**description, **contender.ask("peak")}
        contender.end()
        for note in result.get("notes", []):
            print(f"{name}, {net}, {sequences} sequences: {note}", file=sys.stderr)
    except RuntimeError as error:
        if "out of memory" in str(error).lower():
            return None
        raise
    rate = sequences * NETS[net][-1] / statistics.median(result["seconds"][WARM_STEPS:])
    return rate, {key: result.get(key, 0) for key in ("pool_peak", "pool_reserved")}, description


def best_sequences(arguments, name, net):
    best, most = None, 0
    sequences = 1
    while sequences <= arguments.most_sequences:
        turn = take_turn(arguments, name, net, sequences)
        if turn is None:
            break
        if turn[0] > most:
            best, most = sequences, turn[0]
        sequences *= 2
    if best is None:
        raise RuntimeError("not one sequence fits its memory")
    return best


def stated_peak(device, measured):
    return next((peak for name, peak in STATED_PEAKS.items() if name in device), measured)


def measure(arguments, net):
    losses = check_losses(arguments, net) if net in arguments.checked else {}
    sequences = {name: best_sequences(arguments, name, net) for name in arguments.contenders}
    rates = {name: [] for name in sequences}
    memory, descriptions = {}, {}
    for _ in range(arguments.rounds):
        for name, each in sequences.items():
            turn = take_turn(arguments, name, net, each)
            while turn is None and each > 1:  # it fitted once; what else holds memory may have changed
                each //= 2
                sequences[name], rates[name] = each, []
                turn = take_turn(arguments, name, net, each)
            if turn is None:
                raise RuntimeError(f"{name}: not one sequence of {net} fits its memory any more")
            rate, memory[name], descriptions[name] = turn
            rates[name].append(rate)
    ours = descriptions["bitloom"]
    operations = ours["operations"] / (sequences["bitloom"] * NETS[net][-1])  # of a token
    peak = stated_peak(ours["device"], ours["peak"])
    return {
        "net": net,
        "dtype": arguments.dtype,
        "device": ours["device"],
        "sequences": sequences,
        "tokens_per_second": {name: statistics.median(each) for name, each in rates.items()},
        "mfu": {name: statistics.median(each) * operations / peak for name, each in rates.items()},
        "ratio": {name: statistics.median(a / b for a, b in zip(rates["bitloom"], each)) for name, each in rates.items()},
        "memory": memory,
        "peak": peak,
        "measured_peak": ours["peak"],
        "first_losses": losses,
        "versions": {name: each.get("version") for name, each in descriptions.items() if "version" in each},
    }


def show(row):
    print(f"\n{row['net']}, {row['dtype']}, {row['device']}: MFU of {row['peak'] / 1e12:.0f} TFLOP/s, "
          f"products had {row['measured_peak'] / 1e12:.0f}")
    print(f"{'':<16}{'sequences':>10}{'tokens/s':>12}{'MFU':>8}{'Bitloom/it':>12}{'tensors, MiB':>14}{'held, MiB':>12}")
    for name, rate in row["tokens_per_second"].items():
        memory = row["memory"][name]
        print(f"{name:<16}{row['sequences'][name]:>10}{rate:>12.0f}{row['mfu'][name]:>8.1%}{row['ratio'][name]:>11.2f}x"
              f"{memory['pool_peak'] / 2**20:>14.0f}{memory['pool_reserved'] / 2**20:>12.0f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description="Compares Bitloom's training steps of GPTs on a GPU with PyTorch's.")
    parser.add_argument("program", help="bitloom_bench_gpt, built with CUDA")
    parser.add_argument("--nets", default=DEFAULT_NETS, help="(default: %(default)s)")
    parser.add_argument("--checked", default="gpt2-124m,tiny", help="nets whose first losses are compared (default: %(default)s)")
    parser.add_argument("--contenders", default="bitloom,bitloom-4bit,compile", help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of all (default: %(default)s)")
    parser.add_argument("--dtype", default="bf16", help="f32 or bf16 (default: %(default)s)")
    parser.add_argument("--device", default="cuda:0", help="(default: %(default)s)")
    parser.add_argument("--most-sequences", type=int, default=MOST_SEQUENCES, help="at once (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=4, help="of each process (default: %(default)s)")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    nets = parse_list(arguments.nets, NETS, parser, "--nets")
    arguments.checked = parse_list(arguments.checked, NETS, parser, "--checked")
    arguments.contenders = parse_list(arguments.contenders, CONTENDERS, parser, "--contenders")
    if "bitloom" not in arguments.contenders:
        parser.error("--contenders: the others are compared with bitloom")
    parse_list(arguments.dtype, TOLERANCES, parser, "--dtype")
    rows = []
    for net in nets:
        try:
            rows.append(measure(arguments, net))
        except RuntimeError as error:
            sys.exit(f"gpu_peers.py: {net}: {error}")
        show(rows[-1])
    ratios = {f"gpu_vs_{name}_{row['net']}": ratio for row in rows for name, ratio in row["ratio"].items() if name != "bitloom"}
    print(json.dumps({**ratios, "rows": rows}))


if __name__ == "__main__":
    main()
