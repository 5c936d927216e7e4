"""links_ddp.py RANK RANKS ADDRESS PARAMETERS PACE: a process of PyTorch's DistributedDataParallel on Gloo, for bench/links.py.

A net with as many f32 parameters as Bitloom's gradients have elements, of which a convolution has most; forward and backward
take PACE seconds, the forward's third before, the backward's two thirds while gradients are exchanged if they are ready.
"""
import json
import os
import sys
import time

import torch
import torch.distributed as dist

CHANNELS, UPDATES, WARM = 128, 6, 2


def main():
    rank, ranks, address, parameters, pace = sys.argv[1:6]
    rank, ranks, parameters, pace = int(rank), int(ranks), int(parameters), float(pace)
    os.environ.update(MASTER_ADDR=address, MASTER_PORT="29500", GLOO_SOCKET_IFNAME="net0")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)

    class Wait(torch.autograd.Function):
        """Takes the rest of the time that a backward pass has."""

        @staticmethod
        def forward(ctx, x):
            time.sleep(pace / 3)
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            time.sleep(2 * pace / 3)
            return gradient

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False)
            self.head = torch.nn.Parameter(torch.zeros(max(1, parameters - self.conv.weight.numel())))

        def forward(self, images):
            # The head comes last, so that its gradients are there before the backward pass of the rest begins.
            return Wait.apply(self.conv(images)).mean() + self.head.sum()

    net = torch.nn.parallel.DistributedDataParallel(Net(), bucket_cap_mb=0.25)
    optimiser = torch.optim.SGD(net.parameters(), lr=1e-3)
    images = torch.randn(1, CHANNELS, 4, 4)
    start = None
    for update in range(WARM + UPDATES):
        if update == WARM:
            dist.barrier()
            if rank == 0:
                print("counting", flush=True)
            start = time.monotonic()
        optimiser.zero_grad()
        net(images).backward()
        optimiser.step()
    if rank == 0:
        seconds = (time.monotonic() - start) / UPDATES
        print("counting", flush=True)
        print(json.dumps({"seconds": seconds, "updates": UPDATES}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
