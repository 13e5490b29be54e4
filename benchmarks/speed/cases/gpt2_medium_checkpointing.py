"""GPT-2 medium (24 layers) with the Trainer of transformers, in bf16, with gradient checkpointing."""

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class RandomTokens(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = torch.randint(0, 50257, (1024,))
        return {"input_ids": tokens, "labels": tokens}


model = GPT2LMHeadModel(GPT2Config(n_embd=1024, n_layer=24, n_head=16))
arguments = TrainingArguments(
    "out",
    per_device_train_batch_size=8,
    gradient_checkpointing=True,
    bf16=True,
    max_steps=20,
    save_strategy="no",
    report_to="none",
)
Trainer(model, arguments, train_dataset=RandomTokens()).train()
