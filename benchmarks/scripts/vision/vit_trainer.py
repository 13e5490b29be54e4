"""Fine-tune a vision transformer with the Trainer of transformers: fp16, evaluation every epoch."""

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification


class Images(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return {"pixel_values": torch.rand(3, 224, 224), "labels": index % 10}


def metrics(prediction):
    return {"accuracy": (prediction.predictions.argmax(axis=1) == prediction.label_ids).mean()}


trainer = Trainer(
    model=ViTForImageClassification(ViTConfig(num_labels=10)),
    args=TrainingArguments(
        output_dir="out",
        num_train_epochs=1,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=64,
        learning_rate=5e-5,
        warmup_steps=1,
        fp16=True,
        eval_strategy="epoch",
        save_strategy="no",
        remove_unused_columns=False,
        report_to="none",
    ),
    train_dataset=Images(96),
    eval_dataset=Images(64),
    compute_metrics=metrics,
)
trainer.train()
