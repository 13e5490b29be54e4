"""An LSTM language model: truncated back-propagation through time, plain SGD, evaluation after the epoch."""

import math

import torch
import torch.nn as nn

VOCABULARY, WIDTH, LAYERS, BATCH, EVAL_BATCH, BPTT = 20_000, 800, 2, 128, 64, 70
device = torch.device("cuda")


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(VOCABULARY, WIDTH)
        self.rnn = nn.LSTM(WIDTH, WIDTH, LAYERS, dropout=0.2)
        self.decoder = nn.Linear(WIDTH, VOCABULARY)
        self.decoder.weight = self.encoder.weight

    def forward(self, tokens, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(tokens)), hidden)
        return self.decoder(self.drop(output)).view(-1, VOCABULARY), hidden

    def init_hidden(self, batch):
        weight = next(self.parameters())
        return weight.new_zeros(LAYERS, batch, WIDTH), weight.new_zeros(LAYERS, batch, WIDTH)


def batchify(length, batch):
    return torch.randint(0, VOCABULARY, (length, batch)).to(device)


def get_batch(source, i):
    length = min(BPTT, len(source) - 1 - i)
    return source[i : i + length], source[i + 1 : i + 1 + length].view(-1)


train_data, val_data = batchify(3 * BPTT + 1, BATCH), batchify(2 * BPTT + 1, EVAL_BATCH)
model = RNNModel().to(device)
criterion = nn.CrossEntropyLoss()

model.train()
hidden = model.init_hidden(BATCH)
for i in range(0, train_data.size(0) - 1, BPTT):
    data, targets = get_batch(train_data, i)
    model.zero_grad()
    hidden = tuple(h.detach() for h in hidden)
    output, hidden = model(data, hidden)
    loss = criterion(output, targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-20)

model.eval()
total_loss, hidden = 0.0, model.init_hidden(EVAL_BATCH)
with torch.no_grad():
    for i in range(0, val_data.size(0) - 1, BPTT):
        data, targets = get_batch(val_data, i)
        output, hidden = model(data, hidden)
        total_loss += len(data) * criterion(output, targets).item()
print(f"perplexity {math.exp(min(total_loss / (len(val_data) - 1), 20)):.1f}")
