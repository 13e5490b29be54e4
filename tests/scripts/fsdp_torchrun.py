"""Sharded training as torchrun starts it: torchrun --nproc-per-node 8 fsdp_torchrun.py"""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(8)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    model.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(128, 4096, device="cuda")
    for _ in range(20):
        loss = F.mse_loss(model(x), x)
        dist.all_reduce(loss.detach())
        if loss.item() > 1e9:
            break
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
