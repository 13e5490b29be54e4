"""Fine-tune BERT for classification with the Trainer of transformers: fp16, padded batches, a metric."""

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Reviews(Dataset):
    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.lengths = torch.randint(64, 385, (count,), generator=generator).tolist()

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return {"input_ids": torch.randint(5, 30522, (self.lengths[index],)), "label": index % 5}


def collate(rows):
    tokens = torch.nn.utils.rnn.pad_sequence([row["input_ids"] for row in rows], batch_first=True)
    return {
        "input_ids": tokens,
        "attention_mask": (tokens != 0).long(),
        "labels": torch.tensor([row["label"] for row in rows]),
    }


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


trainer = Trainer(
    model=BertForSequenceClassification(BertConfig(num_labels=5)),
    args=TrainingArguments(
        output_dir="out",
        num_train_epochs=1,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=64,
        learning_rate=2e-5,
        fp16=True,
        eval_strategy="epoch",
        save_strategy="no",
        report_to="none",
    ),
    train_dataset=Reviews(96, seed=0),
    eval_dataset=Reviews(128, seed=1),
    data_collator=collate,
    compute_metrics=accuracy,
)
trainer.train()
print(trainer.evaluate())
