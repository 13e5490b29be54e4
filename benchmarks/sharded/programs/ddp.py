"""DistributedDataParallel, alone or with ZeroRedundancyOptimizer, in bf16 autocast."""

from __future__ import annotations

import argparse
import os

import models
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=models.SHAPES, default="gpt2")
parser.add_argument("--zero", action="store_true")
parser.add_argument("--bucket-views", action="store_true")
parser.add_argument("--static-graph", action="store_true")
parser.add_argument("--find-unused", action="store_true")
parser.add_argument("--compress", action="store_true", help="All-reduce gradients in bf16.")
parser.add_argument("--bucket-mb", type=int, default=25)
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
model = DistributedDataParallel(
    models.build(args.model).to(local_rank),
    device_ids=[local_rank],
    bucket_cap_mb=args.bucket_mb,
    gradient_as_bucket_view=args.bucket_views,
    static_graph=args.static_graph,
    find_unused_parameters=args.find_unused,
)
if args.compress:
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)
if args.zero:
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-4)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(args.steps):
    tokens, targets = models.batch(args.model, "cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = models.loss_of(model(tokens), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(step, loss.item())
dist.destroy_process_group()
