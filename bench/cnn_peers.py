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
import pathlib
import sys
import tempfile
import time


import peers
from peers import Contender, resident_peak

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
    optimizer = torch_cnn.make_optimizer(module, training["learning_rate"], training["weight_decay"], training["momentum"],
                                         training["bias_rate"], training["decays_vectors"])
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


def measure(arguments, net, dtype):
    """One net in one format: medians and ratios."""
    batch, steps = NETS[net]
    command = [arguments.program, net, dtype, str(batch)]
    with tempfile.TemporaryDirectory() as folder:
        path = str(pathlib.Path(folder) / "start.safetensors")
        peers.save_start(command, path, arguments.threads)
        contenders = {"bitloom": Contender(command, arguments.threads)}
        for kind in arguments.peers:
            worker = json.dumps([dtype, kind, path, arguments.threads])
            contenders[kind] = Contender([sys.executable, __file__, "--worker", worker], arguments.threads, kind == "compile")
        losses, missing = peers.check_losses(contenders, f"{net} {dtype}", CHECKED_STEPS,
                                             lambda theirs, ours: abs(theirs - ours) / ours, TOLERANCES[dtype])
    turns = peers.take_turns(contenders, steps, batch, arguments.rounds)
    row = {"net": net, "dtype": dtype, "batch": batch, "images_per_second": turns.pop("rate"), **turns, "first_losses": losses,
           "missing": missing}
    return row, contenders["bitloom"].description, peers.versions_of(contenders)


def main():
    parser = argparse.ArgumentParser(description="Compares Bitloom's training steps of convolutional nets with PyTorch's.")
    peers.add_options(parser, "bitloom_bench_cnn", "airbench94,resnet18", NETS)
    arguments = parser.parse_args()
    rows, ours, versions = peers.measure_all(
        parser, arguments, NETS, TOLERANCES, lambda net, dtype: measure(arguments, net, dtype),
        lambda row: peers.show_row(row, row["images_per_second"]),
        lambda ours, versions: peers.show_head(ours, versions, "images", ", channels last"))
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
