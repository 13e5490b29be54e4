"""Train GPT-2 with the Trainer of transformers: bf16, gradient checkpointing, evaluation after the epoch."""

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class RandomTokens(Dataset):
    def __init__(self, count, length=1024, vocabulary=50257):
        self.tokens = torch.randint(0, vocabulary, (count, length))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


model = GPT2LMHeadModel(GPT2Config())
arguments = TrainingArguments(
    output_dir="out",
    num_train_epochs=1,
    per_device_train_batch_size=8,
    per_device_eval_batch_size=8,
    gradient_checkpointing=True,
    bf16=True,
    eval_strategy="epoch",
    save_strategy="no",
    report_to="none",
)
trainer = Trainer(model=model, args=arguments, train_dataset=RandomTokens(24), eval_dataset=RandomTokens(16))
trainer.train()
