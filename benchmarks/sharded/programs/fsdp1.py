"""`FullyShardedDataParallel` (FSDP1) with a policy that wraps every block."""

from __future__ import annotations

import argparse
import functools
import os

import models
import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffload, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

BLOCKS = (models.GPT2Block, models.LlamaBlock)
parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=models.SHAPES, default="gpt2")
parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
parser.add_argument("--strategy", choices=ShardingStrategy.__members__, default="FULL_SHARD")
parser.add_argument("--hybrid", type=int, default=0, help="Shard over this many ranks and replicate.")
parser.add_argument("--orig-params", action="store_true")
parser.add_argument("--offload", action="store_true")
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
if args.model == "llama":
    with torch.device("meta"):
        model = models.build(args.model)


def materialise(module: torch.nn.Module) -> None:
    module.to_empty(device=torch.device("cuda", local_rank), recurse=False)
    models.initialise(module)


if args.model == "gpt2":
    model = models.build(args.model)
mesh = None
if args.hybrid:
    groups = dist.get_world_size() // args.hybrid
    mesh = init_device_mesh("cuda", (groups, args.hybrid), mesh_dim_names=("replicate", "shard"))
half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, buffer_dtype=torch.bfloat16)
model = FSDP(
    model,
    auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=set(BLOCKS)),
    sharding_strategy=ShardingStrategy[args.strategy],
    mixed_precision=half if args.precision == "bf16" else None,
    cpu_offload=CPUOffload(offload_params=args.offload),
    device_id=local_rank,
    device_mesh=mesh,
    use_orig_params=args.orig_params,
    param_init_fn=materialise if args.model == "llama" else None,
)
if args.checkpointing:
    apply_activation_checkpointing(
        model,
        checkpoint_wrapper_fn=functools.partial(
            checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT
        ),
        check_fn=lambda module: isinstance(module, BLOCKS),
    )

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(args.steps):
    tokens, targets = models.batch(args.model, "cuda")
    loss = models.loss_of(model(tokens), targets)
    loss.backward()
    if not args.offload:
        model.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(step, loss.item())
dist.destroy_process_group()
