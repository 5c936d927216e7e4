"""parallel_peer.py ddp|fsdp RANK RANKS ADDRESS SETTINGS: a process of PyTorch on Gloo, for bench/parallel.py.

A GPT of the sizes in SETTINGS, JSON as of bitloom_bench_parallel, by DistributedDataParallel or by fully_shard of every block
(FSDP2). Layers take as long as theirs do there ("forward_seconds", "head_seconds"), so that processes do not compete for the
cores of this machine. Rank 0 prints the seconds of each step.
"""
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

WARM = 2


class Pace:
    """Lets a module's passes take as long as they are told to."""

    def __init__(self, forward, backward):
        self.forward, self.backward = forward, backward
        self.began = 0.0

    def rest(self, seconds):
        left = seconds - (time.monotonic() - self.began)
        if left > 0:
            time.sleep(left)


class Above(torch.autograd.Function):
    """Behind a module: the first of it to be passed backward."""

    @staticmethod
    def forward(ctx, x, pace):
        ctx.pace = pace
        pace.rest(pace.forward)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        ctx.pace.began = time.monotonic()
        return gradient, None


class Below(torch.autograd.Function):
    """Before a module: the last of it to be passed backward."""

    @staticmethod
    def forward(ctx, x, pace):
        ctx.pace = pace
        pace.began = time.monotonic()
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        ctx.pace.rest(ctx.pace.backward)
        return gradient, None


class Block(nn.Module):
    def __init__(self, width, heads, pace):
        super().__init__()
        self.heads, self.pace = heads, pace
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.first, self.second = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = Below.apply(x, self.pace)
        batch, tokens, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).reshape(batch, tokens, width)
        x = x + self.projection(mixed)
        x = x + self.second(F.gelu(self.first(self.norm2(x)), approximate="tanh"))
        return Above.apply(x, self.pace)


class Gpt(nn.Module):
    def __init__(self, s):
        super().__init__()
        paces = [Pace(seconds, 2 * seconds) for seconds in s["forward_seconds"][2:-1]]  # without embedding, dropout and norm
        self.tokens, self.positions = nn.Embedding(s["vocabulary"], s["width"]), nn.Embedding(s["context"], s["width"])
        self.blocks = nn.ModuleList(Block(s["width"], s["heads"], pace) for pace in paces)
        self.norm = nn.LayerNorm(s["width"])
        self.pace = Pace(s["head_seconds"], 2 * s["head_seconds"])

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(Below.apply(self.norm(x), self.pace), self.tokens.weight)
        return Above.apply(logits, self.pace)


def main():
    kind, rank, ranks, address, settings = sys.argv[1:6]
    rank, ranks, s = int(rank), int(ranks), json.loads(settings)
    os.environ.update(MASTER_ADDR=address, MASTER_PORT="29500", GLOO_SOCKET_IFNAME="net0")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    net = Gpt(s)
    if kind == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (ranks,))
        for block in net.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(net, mesh=mesh)
    else:
        net = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=s["bucket_bytes"] / 2**20, gradient_as_bucket_view=True)
    optimiser = torch.optim.AdamW(net.parameters(), lr=3e-4, foreach=True)
    micro_batches = s["batch"] // ranks // s["micro_batch"]
    ids = torch.randint(s["vocabulary"], (s["micro_batch"], s["context"] + 1))
    seconds = []
    for _ in range(WARM + s["steps"]):
        dist.barrier()
        begin = time.monotonic()
        optimiser.zero_grad(set_to_none=True)
        for i in range(micro_batches):
            last = i + 1 == micro_batches
            if kind == "fsdp":
                net.set_is_last_backward(last)
            else:
                net.require_backward_grad_sync = last
            loss = F.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()) / micro_batches
            loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
        dist.barrier()
        seconds.append(time.monotonic() - begin)
    if rank == 0:
        print(json.dumps({"seconds": seconds[WARM:]}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
