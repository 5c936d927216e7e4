"""What scripts/repro-shakespeare runs: GPTs of Bitloom and of PyTorch on the same tokens with the same budget.

shakespeare.py --data FILE [--torch] [--net L,H,W] [--context T] [--steps N] [--batch B] [--rate R] [--warmup N] [--seeds N]
[--levels bytes,bpe] [--vocabulary V] [--bits 4,3,2,1] [--quantisers few-bit,act-nn] [--narrow-state] [--muon 1000,250] [--muon-rate R]
[--threads N] [--out FOLDER]: prints a table of validation losses in nats per token, a sample, and a line of JSON. --narrow-state: a row of
trainings whose AdamW keeps its means in 16 bits, the variance at most 5. --muon: rows of trainings by Muon, each of one of these numbers of
steps, at --muon-rate or, as the program has it, four times the rate; with --torch also by torch.optim.Muon."""

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import time

import earlier_runs

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "build/release/bin/bitloom"


# --- PyTorch, in a process of its own ---


def read_tokens(path):
    import numpy
    import torch

    types = {"U16": numpy.uint16, "I32": numpy.int32}
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        entry = json.loads(file.read(size))["tokens"]
    begin, end = entry["data_offsets"]
    dtype = numpy.dtype(types[entry["dtype"]])
    tokens = numpy.fromfile(path, dtype, (end - begin) // dtype.itemsize, offset=8 + size + begin)
    return torch.from_numpy(tokens.astype(numpy.int64))


def default_warmup(steps):
    """That of `train gpt`, in steps."""
    return min(3000, steps // 20)


def warmup_of(options):
    return default_warmup(options.steps) if options.warmup is None else options.warmup


def rate_at(step, steps, peak, warmup):
    """Bitloom's schedule (src/optim/schedule.h): linear warm-up, then half a cosine to a tenth of the peak."""
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    floor = 0.1 * peak
    progress = min(1.0, (step - warmup) / (steps - warmup))
    return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * progress))


def torch_optimizers(torch, pairs, muon):
    """With Bitloom's momentum and weight decay. muon: matrices of blocks move by PyTorch's own Muon, all else by AdamW, as in Bitloom."""

    def adamw(chosen):
        groups = [{"params": [p for p, _ in chosen if p.ndim == axes], "weight_decay": decay} for axes, decay in ((2, 0.01), (1, 0.0))]
        return torch.optim.AdamW(groups, betas=(0.9, 0.999), eps=1e-8)

    if not muon:
        return [adamw(pairs)]
    matrices = [(p, name) for p, name in pairs if p.ndim == 2 and name.startswith("blocks.")]
    others = [(p, name) for p, name in pairs if p.ndim != 2 or not name.startswith("blocks.")]
    # Nesterov's momentum and five steps of Newton and Schulz are its defaults.
    return [torch.optim.Muon([p for p, _ in matrices], weight_decay=0.01, momentum=0.95, adjust_lr_fn="match_rms_adamw"), adamw(others)]


def initialise(torch, pairs, layers):
    with torch.no_grad():
        for parameter, name in pairs:
            if name.endswith(".gain"):
                parameter.fill_(1)
            elif name.endswith(".bias"):
                parameter.zero_()
            else:
                last = name.endswith("projection.weight") or name.endswith("second.weight")
                parameter.normal_(0, 0.02 / math.sqrt(2 * layers) if last else 0.02)


def chunks(torch, tokens, context, generator):
    """Endless: an epoch begins at a random place of the text, which is cut into chunks that are shuffled."""
    while True:
        first = int(torch.randint(context, (1,), generator=generator))
        count = (len(tokens) - first - 1) // context
        for i in torch.randperm(count, generator=generator).tolist():
            begin = first + i * context
            yield tokens[begin : begin + context + 1]


def evaluate(torch, module, tokens, context):
    """Mean loss of all tokens but the first, in chunks one behind the other; the last is shorter."""
    total, count = 0.0, 0
    with torch.no_grad():
        for begin in range(0, len(tokens) - 1, 16 * context):
            part = tokens[begin : begin + 16 * context + 1]
            rows = (len(part) - 1) // context
            if rows:
                x = part[: rows * context].view(rows, context)
                y = part[1 : rows * context + 1].view(rows, context)
                total += module(x, y).item() * y.numel()
                count += y.numel()
            rest = part[rows * context :]
            if len(rest) > 1:
                padded = torch.zeros(context, dtype=torch.int64)
                padded[: len(rest) - 1] = rest[:-1]
                targets = torch.full((context,), -100, dtype=torch.int64)  # which cross_entropy leaves out
                targets[: len(rest) - 1] = rest[1:]
                total += module(padded[None], targets[None]).item() * (len(rest) - 1)
                count += len(rest) - 1
    return total / count


def torch_worker(options, level, seed, muon_steps):
    """Trains, by Muon if there are steps of it, and prints a line of JSON."""
    muon = muon_steps > 0
    steps = muon_steps if muon else options.steps
    warmup = default_warmup(steps) if muon else warmup_of(options)
    sys.path.insert(0, str(ROOT / "bench"))
    import gpt_peers
    import torch

    if muon and not hasattr(torch.optim, "Muon"):
        sys.exit(f"PyTorch {torch.__version__} has no Muon; expected 2.9 or later in build/venv")
    torch.set_num_threads(options.threads)
    torch.manual_seed(seed)
    layers, heads, width = options.net
    vocabulary = vocabulary_of(options, level)
    sizes = (layers, heads, width, vocabulary, options.batch, options.context)
    module, pairs = gpt_peers.make_net(torch, sizes, 0.0)
    initialise(torch, pairs, layers)
    optimizers = torch_optimizers(torch, pairs, muon)
    rate = options.muon_rate if muon else options.rate
    folder = options.out / level
    source = chunks(torch, read_tokens(folder / "train.tokens"), options.context, torch.Generator().manual_seed(seed))
    start = time.perf_counter()
    for step in range(steps):
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate_at(step, steps, rate, warmup)
        batch = torch.stack([next(source) for _ in range(options.batch)])
        loss = module(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
        module.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        if step % 100 == 99:
            print(f"  PyTorch{', Muon' if muon else ''}, {level}, seed {seed}: step {step + 1}, loss {loss.item():.4f}", file=sys.stderr)
    seconds = time.perf_counter() - start
    loss = evaluate(torch, module, read_tokens(folder / "validation.tokens"), options.context)
    print(json.dumps({"loss": loss, "seconds": seconds}))


# --- The comparison ---


def vocabulary_of(options, level):
    return 257 if level == "bytes" else options.vocabulary


def prepare(options, level):
    """Token files of the text, the last tenth of which is for validation; gives bytes per token there."""
    folder = options.out / level
    tokenizer = "bytes"
    if level == "bpe":
        tokenizer = options.out / f"tokenizer-{options.vocabulary}"
        if not tokenizer.exists():
            subprocess.run([PROGRAM, "tokenizer", "train", "--input", options.data, "--vocabulary", str(options.vocabulary),
                            "--out", tokenizer], check=True, stdout=sys.stderr)
    if not (folder / "train.tokens").exists():
        subprocess.run([PROGRAM, "data", "text", "--input", options.data, "--tokenizer", tokenizer, "--validation", "9:1",
                        "--out", folder], check=True, stdout=sys.stderr)


def train(options, level, seed, name, steps, arguments):
    """A run of Bitloom's in the folder `name`, which is made or continued if need be."""
    run = options.out / name
    if not (run / "model.safetensors").exists():
        layers, heads, width = options.net
        resume = ["--resume"] if (run / "options.ini").exists() else []
        subprocess.run(
            [PROGRAM, "train", "gpt", "--data", options.out / level, "--layers", str(layers), "--heads", str(heads), "--width",
             str(width), "--context", str(options.context), "--steps", str(steps), "--batch", str(options.batch), "--dropout", "0",
             *arguments, "--seed", str(seed), "--evaluate-every", str(steps), "--evaluate-sequences", "0", "--keep", "last",
             "--out", run, *resume],
            check=True, stdout=sys.stderr, env=dict(os.environ, OMP_NUM_THREADS=str(options.threads)))
    result = earlier_runs.events_of(run, "result")[-1]
    return {"loss": result["validation_loss"], "seconds": result["seconds"]}


def train_bitloom(options, level, seed, bits, quantiser="few-bit"):
    kept = "all" if bits == 0 else f"{bits}" if quantiser == "few-bit" else f"{quantiser}-{bits}"
    arguments = ["--learning-rate", str(options.rate), "--warmup", str(warmup_of(options)), "--activation-bits", str(bits),
                 *(["--activation-quantiser", quantiser] if bits else [])]
    return train(options, level, seed, f"bitloom-{level}-{kept}-{seed}", options.steps, arguments)


def train_narrow_state(options, level, seed):
    arguments = ["--learning-rate", str(options.rate), "--warmup", str(warmup_of(options)), "--optimizer-state", "16-bit",
                 "--variance-limit", "5"]
    return train(options, level, seed, f"narrow-state-{level}-{seed}", options.steps, arguments)


def train_muon(options, level, seed, steps):
    arguments = ["--optimizer", "muon", "--learning-rate", str(options.muon_rate)]
    return train(options, level, seed, f"muon-{level}-{steps}-{seed}", steps, arguments)


def train_torch(options, level, seed, muon_steps=0):
    file = options.out / (f"torch-muon-{level}-{muon_steps}-{seed}.json" if muon_steps else f"torch-{level}-{seed}.json")
    if not file.exists():
        done = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--worker", f"{level},{seed},{muon_steps}"], check=True,
                              stdout=subprocess.PIPE, text=True)
        file.write_text(done.stdout.splitlines()[-1])
    return json.loads(file.read_text())


def show(name, runs, reference=None):
    losses = [run["loss"] for run in runs]
    row = {"name": name, "losses": losses, "mean": statistics.mean(losses), "seconds": statistics.median(r["seconds"] for r in runs)}
    text = f"{name:<34}{row['mean']:.4f}  {min(losses):.4f} to {max(losses):.4f}"
    if reference:
        inside = min(reference["losses"]) <= row["mean"] <= max(reference["losses"])
        row["within_spread"] = inside or row["mean"] < min(reference["losses"])
        text += f"  {row['mean'] - reference['mean']:+.4f}"
        text += "  within the spread of the first row, or better" if row["within_spread"] else "  worse than the spread of the first row"
    print(text, flush=True)
    return row


def parse():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--narrow-state", action="store_true")
    parser.add_argument("--net", default="4,4,128")
    parser.add_argument("--levels", default="bytes,bpe")
    parser.add_argument("--bits", default="4,3,2,1")
    parser.add_argument("--quantisers", default="few-bit")
    parser.add_argument("--muon", default="")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "runs/shakespeare")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--muon-rate", type=float)
    parser.add_argument("--warmup", type=int)
    for name, default in (("context", 128), ("steps", 1000), ("batch", 16), ("seeds", 3), ("vocabulary", 1024),
                          ("threads", len(os.sched_getaffinity(0)))):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.muon_rate = options.muon_rate or 4 * options.rate
    options.net = tuple(int(part) for part in options.net.split(","))
    return options


def main():
    options = parse()
    if options.worker:
        level, seed, muon_steps = options.worker.split(",")
        torch_worker(options, level, int(seed), int(muon_steps))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    names = ("net", "context", "steps", "batch", "rate", "vocabulary")
    settings = {name: getattr(options, name) for name in names} | {"warmup": warmup_of(options), "data": str(options.data.resolve())}
    if options.muon_rate != 4 * options.rate:
        settings["muon_rate"] = options.muon_rate
    earlier_runs.require_same_settings(options.out, settings)
    seeds = range(1, options.seeds + 1)
    levels = options.levels.split(",")
    result = {"steps": options.steps, "batch": options.batch, "context": options.context, "net": options.net, "levels": {}}
    print(f"validation loss after {options.steps} steps of {options.batch} x {options.context} tokens, {options.seeds} seeds")
    print(f"{'':<34}mean    smallest to largest")
    for level in levels:
        prepare(options, level)
        rows = [show(f"{level}: Bitloom", [train_bitloom(options, level, seed, 0) for seed in seeds])]
        if options.torch:
            rows.append(show(f"{level}: PyTorch", [train_torch(options, level, seed) for seed in seeds]))
            rows[0]["not_worse_than_torch"] = rows[0]["mean"] <= max(rows[1]["losses"])
        for bits in map(int, filter(None, options.bits.split(","))):
            if level != levels[0]:
                break
            for quantiser in options.quantisers.split(","):
                runs = [train_bitloom(options, level, seed, bits, quantiser) for seed in seeds]
                name = f"{level}: Bitloom, {bits}-bit {'activations' if quantiser == 'few-bit' else quantiser}"
                rows.append(show(name, runs, rows[0]))
        if options.narrow_state:
            runs = [train_narrow_state(options, level, seed) for seed in seeds]
            rows.append(show(f"{level}: Bitloom, means in 16 bits", runs, rows[0]))
        for steps in map(int, filter(None, options.muon.split(","))):
            runs = [train_muon(options, level, seed, steps) for seed in seeds]
            rows.append(show(f"{level}: Bitloom, Muon, {steps} steps", runs, rows[0]))
            if options.torch:
                runs = [train_torch(options, level, seed, steps) for seed in seeds]
                rows.append(show(f"{level}: PyTorch, Muon, {steps} steps", runs, rows[0]))
        result["levels"][level] = rows
    run = options.out / f"bitloom-{levels[0]}-all-1"
    print("\na sample:", flush=True)
    subprocess.run([PROGRAM, "sample", run, "--prompt", "ROMEO:", "--tokens", "300", "--temperature", "0.8"], check=True,
                   stderr=subprocess.DEVNULL)
    print(json.dumps(result))


main()
