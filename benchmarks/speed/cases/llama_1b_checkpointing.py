"""A Llama of 1.2 billion parameters with transformers' Trainer, in bf16, with gradient checkpointing."""

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class RandomTokens(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = torch.randint(0, 128256, (1024,))
        return {"input_ids": tokens, "labels": tokens}


config = LlamaConfig(
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    vocab_size=128256,
    tie_word_embeddings=True,
)
arguments = TrainingArguments(
    "out",
    per_device_train_batch_size=2,
    gradient_checkpointing=True,
    bf16=True,
    max_steps=20,
    save_strategy="no",
    report_to="none",
)
Trainer(LlamaForCausalLM(config), arguments, train_dataset=RandomTokens()).train()
