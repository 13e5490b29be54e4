"""A language model from a configuration, trained with the Hugging Face Trainer; nothing is downloaded."""

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

VOCABULARY, LENGTH, BATCH = 32_000, 128, 64


class Tokens(Dataset):
    def __len__(self):
        return 64 * BATCH

    def __getitem__(self, index):
        tokens = torch.randint(VOCABULARY, (LENGTH,))
        return {"input_ids": tokens, "labels": tokens}


def main():
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=256, n_layer=2, n_head=4)
    model = GPT2LMHeadModel(config)
    arguments = TrainingArguments(
        output_dir="hf_output", per_device_train_batch_size=BATCH, num_train_epochs=1, logging_steps=1
    )
    Trainer(model=model, args=arguments, train_dataset=Tokens()).train()


if __name__ == "__main__":
    main()
