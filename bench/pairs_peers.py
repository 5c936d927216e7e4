#!/usr/bin/env python3
"""Training steps and samples of text to image: `bitloom` against PyTorch, eager and compiled, on the same cores.

pairs_peers.py BITLOOM [--parts dvae,dalle,sample] [--dtypes f32,bf16] [--peers eager,compile] [--rounds N] [--threads N]: contenders
take turns, a process each; ratios are medians of the rounds' own ratios. Bitloom's turn is a training of the command line, whose
batches are read and cut meanwhile; the first steps are not counted. PyTorch (scripts/torch_text_to_image.py) has its batches in
memory, AdamW with foreach, channels last, scaled_dot_product_attention with masks, and for bf16 its autocast; it samples with a cache
of keys and values. Prints a table; the last line is JSON.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import peers

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

# Least speeds, as multiples of each peer's.
PARTS = {"dvae": 1.0, "dalle": 1.0, "sample": 3.0}
BATCH, STEPS, SKIPPED = 32, 30, 10
SIDE, CODES, GRID, TEXT, VOCABULARY = 64, 512, 8, 32, 512
LAYERS, HEADS, WIDTH, EXTENT = 6, 4, 256, 11
SAMPLES = 64
DVAE = {"side": SIDE, "codes": CODES, "groups": 4, "blocks": 2, "hidden": 32, "init": 32}
DALLE = {"layers": LAYERS, "heads": HEADS, "width": WIDTH, "text_positions": TEXT, "text_vocabulary": VOCABULARY, "grid": GRID,
         "codes": CODES, "extent": EXTENT}


# --- PyTorch, in a process of its own ---


def dvae_step(torch, twins):
    """One step of training, as `train dvae` computes it."""
    functional = torch.nn.functional
    net = torch.nn.ModuleList([twins.Encoder(DVAE), twins.Decoder(DVAE)]).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, foreach=True)
    images = torch.rand(BATCH, 3, SIDE, SIDE).mul(0.8).add(0.1).contiguous(memory_format=torch.channels_last)
    targets = torch.logit(images)

    def loss():
        logits = net[0](images).float()
        noise = -torch.log(-torch.log(torch.rand_like(logits).clamp_(1e-12, 1 - 1e-7)))
        maps = net[1](torch.softmax((logits + noise) / 0.5, 1)).float()
        mean, log_b = maps[:, :3], maps[:, 3:].clamp(min=-1)
        fit = ((targets - mean).abs() * torch.exp(-log_b) + log_b).sum()
        log_q = functional.log_softmax(logits, 1)
        divergence = (log_q.exp() * (log_q + torch.log(torch.tensor(float(CODES))))).sum()
        return (fit + 16 * divergence) / images.numel()

    return net, optimizer, loss


def attention_with_masks(torch, twins):
    """The twin's attention by PyTorch's own op, and masks that are made once."""
    functional = torch.nn.functional

    def forward(self, x, mask):
        batch, tokens, width = x.shape
        q, k, v = (part.view(batch, tokens, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm(x)).split(width, 2))
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.projection(mixed.transpose(1, 2).reshape(batch, tokens, width))

    twins.Attention.forward = forward
    made = {}
    mask_of = twins.Dalle.mask_of

    def mask_once(self, layer):
        if layer not in made:
            made[layer] = mask_of(self, layer)
        return made[layer]

    twins.Dalle.mask_of = mask_once


def dalle_step(torch, twins):
    functional = torch.nn.functional
    net = twins.Dalle(DALLE)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, foreach=True)
    text = torch.randint(VOCABULARY, (BATCH, TEXT))
    text[:, TEXT // 4 :] = -1  # captions are short
    codes = torch.randint(CODES, (BATCH, GRID * GRID))

    def loss():
        of_text, of_codes = net(text, codes)
        first = functional.cross_entropy(of_text.float().flatten(0, 1), text[:, 1:].flatten(), ignore_index=-1)
        return first / 8 + 7 / 8 * functional.cross_entropy(of_codes.float().flatten(0, 1), codes.flatten())

    return net, optimizer, loss


def sample_with_cache(torch, twins):
    """Codes of SAMPLES images, drawn one after the other; returns what does that."""
    functional = torch.nn.functional
    net = twins.Dalle(DALLE).eval()
    tokens = TEXT + GRID * GRID
    masks = [net.mask_of(layer) for layer in range(LAYERS)]

    def pass_over(ids, at, keys, values):
        """ids (N,T) at positions at .. at + T - 1."""
        batch, count = ids.shape
        position = torch.arange(at, at + count)
        x = net.embedding["inputs"](ids)
        if at < TEXT:
            x = x + net.embedding["text"](position)
        else:
            raster = position - TEXT
            x = x + net.embedding["rows"](raster // GRID) + net.embedding["columns"](raster % GRID)
        for layer, block in enumerate(net.blocks):
            attention = block.attention
            q, k, v = (part.view(batch, count, HEADS, -1).transpose(1, 2)
                       for part in attention.qkv(attention.norm(x)).split(WIDTH, 2))
            keys[layer][:, :, at : at + count] = k
            values[layer][:, :, at : at + count] = v
            seen = masks[layer][at : at + count, : at + count]
            mixed = functional.scaled_dot_product_attention(
                q, keys[layer][:, :, : at + count], values[layer][:, :, : at + count], attn_mask=seen)
            x = x + attention.projection(mixed.transpose(1, 2).reshape(batch, count, WIDTH))
            x = x + block.feed_forward(x)
        return net.head["codes"](net.norm(x[:, -1]))

    def draw():
        with torch.no_grad():
            shape = (SAMPLES, HEADS, tokens, WIDTH // HEADS)
            keys = [torch.zeros(shape) for _ in range(LAYERS)]
            values = [torch.zeros(shape) for _ in range(LAYERS)]
            logits = pass_over(torch.randint(VOCABULARY, (SAMPLES, TEXT)), 0, keys, values)
            for i in range(GRID * GRID):
                code = torch.multinomial(torch.softmax(logits, 1), 1)
                if i + 1 < GRID * GRID:
                    logits = pass_over(VOCABULARY + TEXT + code, TEXT + i, keys, values)

    return draw


def torch_worker(part, dtype, kind, threads):
    """Replies to each line "steps N" with the seconds of each: of a step, or of SAMPLES images."""
    import torch
    import torch_text_to_image as twins

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    attention_with_masks(torch, twins)
    autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16")
    if part == "sample":
        draw = sample_with_cache(torch, twins)

        def once():
            with autocast:
                draw()
    else:
        net, optimizer, loss = (dvae_step if part == "dvae" else dalle_step)(torch, twins)
        forward = torch.compile(loss) if kind == "compile" else loss

        def once():
            with autocast:
                value = forward()
            optimizer.zero_grad(set_to_none=True)
            value.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 4)
            optimizer.step()

    print(json.dumps({"version": torch.__version__}), flush=True)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line.split()[1])):
            start = time.perf_counter()
            once()
            seconds.append(time.perf_counter() - start)
        print(json.dumps({"seconds": seconds}), flush=True)


def start_torch(part, dtype, kind, threads):
    """The process, warm: it has compiled what it compiles."""
    contender = peers.Contender([sys.executable, __file__, "--worker", part, dtype, kind, str(threads)], threads, kind == "compile")
    seconds_of(contender, 2 if part == "sample" else SKIPPED)
    return contender


def seconds_of(contender, count):
    return statistics.median(contender.ask(f"steps {count}")["seconds"])


# --- Bitloom ---


class Bitloom:
    def __init__(self, program, folder, threads):
        self.program, self.folder = program, folder
        self.environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
        self.count = 0
        self.run("data", "synth-pairs", "--count", 20 * BATCH, "--side", SIDE, "--hold-out", 0, "--out", "scenes")
        self.run("train", "dvae", "--data", "scenes", "--net", "emoji", "--steps", 2, "--batch", BATCH, "--validation", 0,
                 "--out", "dvae")
        self.run(*self.training("dalle", "f32", "dalle", 2))

    def run(self, *arguments):
        done = subprocess.run([self.program, *map(str, arguments)], cwd=self.folder, env=self.environment, capture_output=True,
                              text=True)
        if done.returncode != 0:
            sys.exit(f"pairs_peers.py: {arguments}: {done.stderr}")
        return done.stdout

    def training(self, part, dtype, out, steps):
        more = {"dvae": ["--net", "emoji", "--kl-weight", 16],
                "dalle": ["--net", "emoji", "--dvae", "dvae", "--dropout", 0, "--vocabulary", VOCABULARY]}[part]
        return ["train", part, "--data", "scenes", "--steps", steps, "--batch", BATCH, "--validation", 0, "--dtype", dtype,
                *more, "--out", out]

    def seconds(self, part, dtype):
        self.count += 1
        if part == "sample":
            out = self.run("sample", "dalle", "--prompt", "a small red circle at the top left", "--count", SAMPLES, "--at-once",
                           SAMPLES, "--dtype", dtype, "--out", f"{self.count}.png", "--json")
            return SAMPLES / json.loads(out)["images_per_second"]
        run = f"run-{self.count}"
        self.run(*self.training(part, dtype, run, STEPS))
        lines = [json.loads(line) for line in (self.folder / run / "metrics.jsonl").read_text().splitlines()]
        steps = {line["step"]: line["seconds"] for line in lines if line.get("event") == "step"}
        return (steps[STEPS] - steps[SKIPPED]) / (STEPS - SKIPPED)


def measure(arguments, bitloom, part, dtype):
    kinds = ["eager"] if part == "sample" else arguments.peers
    contenders = {kind: start_torch(part, dtype, kind, arguments.threads) for kind in kinds}
    bitloom.seconds(part, dtype)  # the first does not count
    ours, ratios = [], {kind: [] for kind in kinds}
    for _ in range(arguments.rounds):
        ours.append(bitloom.seconds(part, dtype))
        for kind, contender in contenders.items():
            ratios[kind].append(seconds_of(contender, 1 if part == "sample" else STEPS - SKIPPED) / ours[-1])
    for contender in contenders.values():
        contender.end()
    row = {"part": part, "dtype": dtype, "images_per_second": (SAMPLES if part == "sample" else BATCH) / statistics.median(ours),
           "vs": {kind: statistics.median(each) for kind, each in ratios.items()},
           "range": {kind: [min(each), max(each)] for kind, each in ratios.items()}}
    text = ", ".join(f"{row['vs'][kind]:.2f}x {peers.PEERS[kind]} ({low:.2f} to {high:.2f})"
                     for kind, (low, high) in row["range"].items())
    print(f"{part:<8}{dtype:<6}{row['images_per_second']:>9.1f} images/s   {text}", flush=True)
    return row, contenders["eager" if "eager" in contenders else kinds[0]].description["version"]


def main():
    if sys.argv[1:2] == ["--worker"]:
        part, dtype, kind, threads = sys.argv[2:]
        return torch_worker(part, dtype, kind, int(threads))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--peers", default=",".join(peers.PEERS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    parts = peers.parse_list(arguments.parts, PARTS, parser, "--parts")
    dtypes = peers.parse_list(arguments.dtypes, ["f32", "bf16"], parser, "--dtypes")
    arguments.peers = peers.parse_list(arguments.peers, peers.PEERS, parser, "--peers")
    rows, version = [], ""
    with tempfile.TemporaryDirectory() as folder:
        bitloom = Bitloom(arguments.program.resolve(), pathlib.Path(folder), arguments.threads)
        for part in parts:
            for dtype in dtypes:
                row, version = measure(arguments, bitloom, part, dtype)
                rows.append(row)
    aims = {}
    for row in rows:
        value = min(row["vs"].values())
        aims[f"{row['part']} {row['dtype']}"] = {"value": value, "aim": PARTS[row["part"]], "met": value >= PARTS[row["part"]]}
    print(json.dumps({"rows": rows, "threads": arguments.threads, "versions": f"PyTorch {version}", "aims": aims}))


if __name__ == "__main__":
    main()
