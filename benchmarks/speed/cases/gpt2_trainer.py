"""GPT-2 (12 layers) with the Trainer of transformers, in bf16."""

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class RandomTokens(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = torch.randint(0, 50257, (1024,))
        return {"input_ids": tokens, "labels": tokens}


arguments = TrainingArguments(
    "out", per_device_train_batch_size=8, bf16=True, max_steps=20, save_strategy="no", report_to="none"
)
Trainer(GPT2LMHeadModel(GPT2Config()), arguments, train_dataset=RandomTokens()).train()
