"""Data-parallel training as torchrun starts it: torchrun --nproc-per-node 4 ddp_torchrun.py"""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("nccl")
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    torch.cuda.set_device(local_rank)
    model = nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(8))).cuda()
    model = DistributedDataParallel(model, device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(128, 4096, device="cuda")
    for _ in range(20):
        optimizer.zero_grad()
        F.mse_loss(model(x), x).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "ddp.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
