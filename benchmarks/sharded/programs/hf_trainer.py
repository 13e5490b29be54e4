"""The Trainer of transformers with GPT-2, in bf16: FSDP by its own arguments, or what a launcher chose."""

from __future__ import annotations

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--fsdp", default="", help="Such as 'full_shard auto_wrap'; default: as launched.")
parser.add_argument("--version", type=int, default=1, help="1 or 2: FullyShardedDataParallel or fully_shard.")
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()


class Tokens(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 50257, (1024,))
        return {"input_ids": tokens, "labels": tokens}


model = GPT2LMHeadModel(GPT2Config(use_cache=False))
sharding = {}
if args.fsdp:
    config = {"transformer_layer_cls_to_wrap": ["GPT2Block"], "version": args.version}
    sharding = {"fsdp": args.fsdp, "fsdp_config": config}
Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="out",
        max_steps=args.steps,
        per_device_train_batch_size=4,
        bf16=True,
        gradient_checkpointing=args.checkpointing,
        report_to=[],
        save_strategy="no",
        **sharding,
    ),
    train_dataset=Tokens(),
).train()
