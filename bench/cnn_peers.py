#!/usr/bin/env python3
"""Training steps of convolutional nets: Bitloom against PyTorch, eager and compiled, on the same cores.

cnn_peers.py BITLOOM_BENCH_CNN [--nets ...] [--dtypes ...] [--peers ...] [--rounds N] [--threads N]: each contender is a process
of its own that trains when it is told to. First all start from Bitloom's initial weights and see the same images: the losses of
the first steps must agree. Then they take turns; ratios are medians of the rounds' own ratios. Prints a table; the last line is
JSON. PyTorch gets what its users give it: channels last, SGD with foreach, and for bf16 its autocast; the net is
scripts/torch_cnn.py's. Neither side reads or augments images while it is timed.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time


from gpt_peers import PEERS, Contender, parse_list, resident_peak

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "scripts"))

# Net -> images of a step, steps of a turn.
NETS = {"airbench94": (512, 2), "airbench96": (256, 1), "resnet18": (128, 1)}
CHECKED_STEPS = 2
# Losses of the first steps, as a share of them: large learning rates spread what rounding begins.
TOLERANCES = {"f32": 1e-3, "bf16": 3e-2}


def torch_worker(dtype, kind, path, threads):
    """Replies to each line "steps N" as bitloom_bench_cnn does."""
    import safetensors.torch
    import torch
    import torch_cnn

    torch.set_num_threads(threads)
    with safetensors.safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    training = json.loads(metadata["training"])
    module = torch_cnn.build(json.loads(metadata["bitloom.config"]))
    tensors = safetensors.torch.load_file(path)
    images, labels = tensors.pop("images"), tensors.pop("labels").long()
    module.load_state_dict(tensors, strict=False)
    module = module.to(memory_format=torch.channels_last).train()
    images = images.permute(0, 1, 4, 2, 3)  # each batch is channels last already
    rate, decay, factor = training["learning_rate"], training["weight_decay"], training["bias_rate"]
    is_norm_bias = lambda name: name.endswith(".bias") and "norm" in name  # noqa: E731
    groups = []
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        own = rate * (factor if is_norm_bias(name) else 1)
        decays = parameter.ndim > 1 or training["decays_vectors"]
        groups.append({"params": [parameter], "lr": own, "weight_decay": decay / own if decays else 0})
    merged = {}
    for group in groups:
        merged.setdefault((group["lr"], group["weight_decay"]), []).extend(group["params"])
    groups = [{"params": parameters, "lr": lr, "weight_decay": wd} for (lr, wd), parameters in merged.items()]
    optimizer = torch.optim.SGD(groups, lr=rate, momentum=training["momentum"], nesterov=True, foreach=True)
    run = torch.compile(module) if kind == "compile" else module
    done = 0

    def step():
        batch = done % len(images)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16"):
            logits = run(images[batch])
        loss = torch.nn.functional.cross_entropy(logits.float(), labels[batch], label_smoothing=training["label_smoothing"])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.item()

    print(json.dumps({"version": torch.__version__, "optimizer": "foreach SGD"}), flush=True)
    for line in sys.stdin:
        result = {"losses": [], "seconds": []}
        for _ in range(int(line.split()[1])):
            start = time.perf_counter()
            result["losses"].append(step())
            result["seconds"].append(time.perf_counter() - start)
            done += 1
        result["resident_peak"] = resident_peak()
        print(json.dumps(result), flush=True)


def check_losses(contenders, net, dtype):
    """All take their first steps. Those of which a step fails, as torch.compile where no compiler is, are left out and named."""
    first, missing = {}, {}
    for kind, contender in list(contenders.items()):
        try:
            first[kind] = contender.ask(f"steps {CHECKED_STEPS}")["losses"]
        except RuntimeError as error:
            if kind == "bitloom":
                raise
            missing[kind] = str(error)
            del contenders[kind]
    for kind, losses in first.items():
        apart = max(abs(theirs - ours) / ours for theirs, ours in zip(losses, first["bitloom"]))
        if not apart <= TOLERANCES[dtype]:
            sys.exit(f"{net} {dtype}: the losses of {kind} are {losses}, Bitloom's {first['bitloom']}")
    return first, missing


def measure(arguments, net, dtype):
    """One net in one format: medians and ratios."""
    batch, steps = NETS[net]
    command = [arguments.program, net, dtype, str(batch)]
    with tempfile.TemporaryDirectory() as folder:
        path = str(pathlib.Path(folder) / "start.safetensors")
        # A process of its own, because the file's bytes would count in the peak of memory.
        saver = Contender(command, arguments.threads)
        saver.ask(f"save {path}")
        saver.end()
        contenders = {"bitloom": Contender(command, arguments.threads)}
        for kind in arguments.peers:
            worker = json.dumps([dtype, kind, path, arguments.threads])
            contenders[kind] = Contender([sys.executable, __file__, "--worker", worker], arguments.threads, kind == "compile")
        losses, missing = check_losses(contenders, net, dtype)
    ours = contenders["bitloom"]
    rates = {kind: [] for kind in contenders}
    peaks, memory = [], {}
    for each in range(arguments.rounds + 1):  # the first does not count
        for kind, contender in contenders.items():
            result = contender.ask(f"steps {steps}")
            memory.setdefault(kind, result["resident_peak"])
            if kind == "bitloom":
                pool = result["pool_peak"]
            if each > 0:
                rates[kind].append(batch / statistics.median(result["seconds"]))
        peak = ours.ask("peak")["peak"]
        if each > 0:
            peaks.append(peak)
    for contender in contenders.values():
        contender.end()
    per_image = ours.description["operations"] / batch
    row = {
        "net": net,
        "dtype": dtype,
        "batch": batch,
        "images_per_second": {kind: statistics.median(values) for kind, values in rates.items()},
        "ratio": {kind: statistics.median(a / b for a, b in zip(rates["bitloom"], rates[kind]))
                  for kind in rates if kind != "bitloom"},
        "share_of_peak": statistics.median(rate * per_image / peak for rate, peak in zip(rates["bitloom"], peaks)),
        "peak_gflops": statistics.median(peaks) / 1e9,
        "memory": {**memory, "bitloom_pool": pool},
        "first_losses": losses,
        "missing": missing,
    }
    versions = {kind: contender.description for kind, contender in contenders.items() if kind != "bitloom"}
    return row, ours.description, versions


def show_head(ours, versions):
    peer = next(iter(versions.values()), {"version": "none", "optimizer": "-"})
    print(f"{ours['cpu']}, {ours['threads']} threads; PyTorch {peer['version']}, {peer['optimizer']}, channels last")
    print("images/s in training, share of the peak of matrix products, Bitloom's speed over each peer's; peak memory in MiB:")
    print(f"Bitloom's tensors, then processes: Bitloom, {', '.join(PEERS.values())}")
    titles = "".join(f"{title:>20}" for title in PEERS.values())
    print(f"\n{'net':<14}{'type':<6}{'Bitloom':>10}{'of peak':>8}{titles}   MiB")


def show(row):
    rates = row["images_per_second"]
    text = f"{row['net']:<14}{row['dtype']:<6}{rates['bitloom']:>10.0f}{row['share_of_peak']:>8.0%}"
    for kind in PEERS:
        text += f"{rates[kind]:>12.0f}{row['ratio'][kind]:>7.2f}x" if kind in rates else f"{'-':>20}"
    peaks = [row["memory"].get(kind) for kind in ("bitloom_pool", "bitloom", *PEERS)]
    print(text + "   " + "/".join(f"{peak / 2**20:.0f}" if peak else "-" for peak in peaks), flush=True)
    for kind, why in row["missing"].items():
        print(f"  {PEERS[kind]} did not run: {why}", flush=True)


def main():
    parser = argparse.ArgumentParser(description="Compares Bitloom's training steps of convolutional nets with PyTorch's.")
    parser.add_argument("program", help="bitloom_bench_cnn")
    parser.add_argument("--nets", default="airbench94,resnet18", help="(default: %(default)s)")
    parser.add_argument("--dtypes", default="f32,bf16", help="(default: %(default)s)")
    parser.add_argument("--peers", default=",".join(PEERS), help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of all (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="(default: all cores)")
    arguments = parser.parse_args()
    if arguments.rounds < 1 or arguments.threads < 1:
        parser.error("--rounds and --threads must be at least 1")
    nets = parse_list(arguments.nets, NETS, parser, "--nets")
    dtypes = parse_list(arguments.dtypes, TOLERANCES, parser, "--dtypes")
    arguments.peers = parse_list(arguments.peers, PEERS, parser, "--peers")
    rows = []
    for net in nets:
        for dtype in dtypes:
            row, ours, versions = measure(arguments, net, dtype)
            if not rows:
                show_head(ours, versions)
            show(row)
            rows.append(row)
    ratios = {f"cnn_vs_torch_{kind}_{row['net']}_{row['dtype']}": ratio for row in rows for kind, ratio in row["ratio"].items()}
    aims = {f"cnn_vs_torch_eager_{row['net']}_{row['dtype']}":
            {"value": row["ratio"]["eager"], "aim": 1.5, "met": row["ratio"]["eager"] >= 1.5}
            for row in rows if "eager" in row["ratio"]}
    print(json.dumps({**ratios, "aims": aims, "rows": rows, "threads": arguments.threads, "cpu": ours["cpu"],
                      "versions": versions}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        torch_worker(*json.loads(sys.argv[2]))
    else:
        main()
