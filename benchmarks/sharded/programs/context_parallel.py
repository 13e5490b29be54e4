"""Llama with `context_parallel`, which gives every rank a part of each long sequence, sharded by FSDP2."""

from __future__ import annotations

import argparse
import os

import models
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method
from torch.nn.attention import SDPBackend, sdpa_kernel

parser = argparse.ArgumentParser()
parser.add_argument("--sequence", type=int, default=16384, help="Tokens of all ranks together.")
parser.add_argument("--rotate", choices=["allgather", "alltoall"], default="allgather")
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("cp",))
set_rotate_method(args.rotate)

with torch.device("meta"):
    model = models.build("llama")
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
layers: nn.ModuleList = model.layers  # pyright: ignore[reportAssignmentType]
if args.checkpointing:
    model.layers = layers = nn.ModuleList(map(checkpoint_wrapper, layers))
for layer in layers:
    fully_shard(layer, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
model.to_empty(device="cuda")
model.apply(models.initialise)

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(args.steps):
    tokens, targets = models.batch("llama", "cuda", sequence=args.sequence)
    positions = torch.arange(args.sequence, device="cuda")
    shared = [tokens, targets, positions]
    with (
        sdpa_kernel([SDPBackend.FLASH_ATTENTION]),
        context_parallel(mesh, buffers=shared, buffer_seq_dims=[1, 1, 0], no_restore_buffers=set(shared)),
    ):
        loss = models.loss_of(model(tokens, positions), targets)
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(step, loss.item())
dist.destroy_process_group()
