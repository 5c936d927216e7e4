"""links_gpt_peers.py NAME RANK RANKS ADDRESS FIRST_ADDRESS PACE INNER: a process of a PyTorch training, for bench/links_gpt.py.

NAME: ddp, powersgd or diloco. The parameters have the sizes of a GPT of 6 blocks of width 384 over bytes; their gradients are
random numbers, and a step takes PACE seconds, the backward pass two thirds of it, during which gradients are exchanged if they are
ready.
"""
import json
import os
import sys
import time

import torch
import torch.distributed as dist

WIDTH, BLOCKS, TOKENS, CONTEXT = 384, 6, 257, 256
STEPS = 3  # of what exchanges in every step
RANK = 4


class Net(torch.nn.Module):
    def __init__(self, pace):
        super().__init__()
        self.pace = pace
        shapes = [(TOKENS, WIDTH), (CONTEXT, WIDTH)]
        for _ in range(BLOCKS):
            shapes += [(3 * WIDTH, WIDTH), (WIDTH, WIDTH), (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH)]
            shapes += [(WIDTH,)] * 4 + [(3 * WIDTH,), (WIDTH,), (4 * WIDTH,), (WIDTH,)]
        self.values = torch.nn.ParameterList([torch.zeros(shape) for shape in shapes])
        self.noise = [torch.randn(shape) for shape in shapes]

    def forward(self):
        loss = 0
        for value, noise in zip(self.values, self.noise):
            loss = loss + (Wait.apply(value, 2 * self.pace / 3 / len(self.noise)) * noise).sum()
        return loss


class Wait(torch.autograd.Function):
    """A part of the time that a backward pass takes."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None


def report(rank, start, steps):
    if rank == 0:
        print("counting", flush=True)
        if start is not None:
            print(json.dumps({"seconds": (time.monotonic() - start) / steps, "steps": steps}), flush=True)


def train_step(net, optimiser, pace):
    time.sleep(pace / 3)
    optimiser.zero_grad()
    net().backward()
    optimiser.step()


def every_step(name, rank, ranks, pace):
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    # The hook waits for a sum where another ends: with several buckets on Gloo, which has two threads, for ever.
    net = torch.nn.parallel.DistributedDataParallel(Net(pace), bucket_cap_mb=1000 if name == "powersgd" else 4)
    if name == "powersgd":
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=RANK, start_powerSGD_iter=2)
        net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-3)
    start = None
    warm = 3 if name == "powersgd" else 1  # its first two steps have whole gradients
    for step in range(warm + STEPS):
        if step == warm:
            dist.barrier()
            report(rank, None, 0)
            start = time.monotonic()
        train_step(net, optimiser, pace)
    report(rank, start, STEPS)
    dist.barrier()
    dist.destroy_process_group()


def diloco(rank, ranks, address, first, pace, inner):
    from datetime import timedelta

    from torchft import Manager, ProcessGroupGloo
    from torchft.coordination import LighthouseServer
    from torchft.local_sgd import DiLoCo

    port = 29510
    lighthouse = LighthouseServer(bind=f"{first}:{port}", min_replicas=ranks) if rank == 0 else None
    net = Net(pace)
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-3)
    outer = torch.optim.SGD(net.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)
    patience = timedelta(seconds=900)
    manager = Manager(pg=ProcessGroupGloo(timeout=patience), min_replica_size=ranks, load_state_dict=net.load_state_dict,
                      state_dict=net.state_dict, use_async_quorum=False, init_sync=False, timeout=patience, quorum_timeout=patience,
                      connect_timeout=patience, rank=0, world_size=1, store_addr=address, store_port=store.port,
                      lighthouse_addr=f"http://{first}:{port}", replica_id=f"replica{rank}", hostname=address)
    start, rounds = None, 3
    with DiLoCo(manager, [net], optimiser, outer, sync_every=inner):
        for step in range(rounds * inner):
            if step == inner:  # the first round has what is made once
                report(rank, None, 0)
                start = time.monotonic()
            train_step(net, optimiser, pace)
    report(rank, start, (rounds - 1) * inner)
    time.sleep(2)
    manager.shutdown()
    if lighthouse is not None:
        time.sleep(5)
        lighthouse.shutdown()


def main():
    name, rank, ranks, address, first, pace, inner = sys.argv[1:8]
    os.environ.update(MASTER_ADDR=first, MASTER_PORT="29500", GLOO_SOCKET_IFNAME="net0", TORCHFT_USE_OTEL="false")
    torch.set_num_threads(1)
    if name == "diloco":
        diloco(int(rank), int(ranks), address, first, float(pace), int(inner))
    else:
        every_step(name, int(rank), int(ranks), float(pace))


main()
