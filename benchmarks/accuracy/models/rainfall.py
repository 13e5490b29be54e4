"""A three-layer LSTM that forecasts a river's flow from weather series, with quantile loss."""

import torch
from torch import nn


class Forecaster(nn.Module):
    def __init__(self, features=28, hidden=336, quantiles=5):
        super().__init__()
        self.inputs = nn.Linear(features, 128)
        self.lstm = nn.LSTM(128, hidden, num_layers=3, batch_first=True, dropout=0.2)
        self.head = nn.Linear(hidden, quantiles)

    def forward(self, series):
        states, _ = self.lstm(torch.tanh(self.inputs(series)))
        return self.head(states)


def rainfall(size, device):
    """size: catchments, each with 240 days."""
    torch.manual_seed(2)
    model = Forecaster().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    levels = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95], device=device)
    weather = torch.randn(size, 240, 28)
    flow = weather[..., :4].mean(dim=-1).cumsum(dim=1)

    def step():
        x, y = weather.to(device), flow.to(device)
        missing = y[..., None] - model(x)
        loss = torch.maximum(levels * missing, (levels - 1) * missing).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss.item()

    return step
