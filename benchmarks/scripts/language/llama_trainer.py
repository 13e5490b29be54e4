"""Train a small Llama from scratch with the Trainer of transformers: bf16, gradient accumulation."""

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class RandomTokens(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = torch.randint(0, 32000, (512,))
        return {"input_ids": tokens, "labels": tokens}


config = LlamaConfig(
    vocab_size=32000,
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=12,
    num_attention_heads=16,
    num_key_value_heads=4,
    max_position_embeddings=2048,
)
trainer = Trainer(
    model=LlamaForCausalLM(config),
    args=TrainingArguments(
        output_dir="out",
        max_steps=3,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        learning_rate=3e-4,
        lr_scheduler_type="cosine",
        bf16=True,
        save_strategy="no",
        report_to="none",
    ),
    train_dataset=RandomTokens(),
)
trainer.train()
