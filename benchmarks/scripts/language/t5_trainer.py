"""Train T5 with the Seq2SeqTrainer of transformers: Adafactor, fp32, 512 tokens in, 128 tokens out."""

import torch
from torch.utils.data import Dataset
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, T5Config, T5ForConditionalGeneration


class Summaries(Dataset):
    def __init__(self, count):
        self.documents = torch.randint(1, 32000, (count, 512))
        self.summaries = torch.randint(1, 32000, (count, 128))

    def __len__(self):
        return len(self.documents)

    def __getitem__(self, index):
        return {
            "input_ids": self.documents[index],
            "attention_mask": torch.ones(512, dtype=torch.long),
            "labels": self.summaries[index],
        }


config = T5Config(
    d_model=768,
    d_kv=64,
    d_ff=3072,
    num_layers=12,
    num_decoder_layers=12,
    num_heads=12,
    decoder_start_token_id=0,
)
arguments = Seq2SeqTrainingArguments(
    output_dir="out",
    max_steps=3,
    per_device_train_batch_size=8,
    optim="adafactor",
    save_strategy="no",
    report_to="none",
)
trainer = Seq2SeqTrainer(
    model=T5ForConditionalGeneration(config), args=arguments, train_dataset=Summaries(64)
)
trainer.train()
