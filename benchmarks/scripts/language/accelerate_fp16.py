"""A training loop of accelerate in fp16 with evaluation: the optimizer is made before `prepare`."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import AutoModelForSequenceClassification, DistilBertConfig, get_scheduler


def sentences(count):
    return TensorDataset(torch.randint(5, 30522, (count, 256)), torch.randint(0, 2, (count,)))


accelerator = Accelerator(mixed_precision="fp16")
model = AutoModelForSequenceClassification.from_config(DistilBertConfig(num_labels=2))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5)
train_loader = DataLoader(sentences(192), batch_size=64, shuffle=True)
eval_loader = DataLoader(sentences(256), batch_size=128)
scheduler = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=3)
model, optimizer, train_loader, eval_loader, scheduler = accelerator.prepare(
    model, optimizer, train_loader, eval_loader, scheduler
)

model.train()
for tokens, labels in train_loader:
    loss = model(input_ids=tokens, labels=labels).loss
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()

model.eval()
correct = 0
for tokens, labels in eval_loader:
    with torch.no_grad():
        logits = model(input_ids=tokens).logits
    predictions, references = accelerator.gather_for_metrics((logits.argmax(dim=-1), labels))
    correct += (predictions == references).sum().item()
print(f"accuracy {correct / len(eval_loader.dataset):.3f}")
