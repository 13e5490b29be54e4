"""Fine-tune Whisper with the Seq2SeqTrainer of transformers on log-mel spectrograms, fp16."""

import torch
from torch.utils.data import Dataset
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    WhisperConfig,
    WhisperForConditionalGeneration,
)


class Speech(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        return {"input_features": torch.randn(80, 3000), "labels": torch.randint(0, 50000, (64,))}


config = WhisperConfig(
    d_model=512,
    encoder_layers=6,
    decoder_layers=6,
    encoder_attention_heads=8,
    decoder_attention_heads=8,
    encoder_ffn_dim=2048,
    decoder_ffn_dim=2048,
)
trainer = Seq2SeqTrainer(
    model=WhisperForConditionalGeneration(config),
    args=Seq2SeqTrainingArguments(
        output_dir="out",
        max_steps=3,
        per_device_train_batch_size=16,
        learning_rate=1e-5,
        gradient_checkpointing=True,
        fp16=True,
        save_strategy="no",
        report_to="none",
    ),
    train_dataset=Speech(),
)
trainer.train()
