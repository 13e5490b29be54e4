"""A LightningModule and Trainer, with Lightning's own logging and checkpoints left on."""

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 2048)
        self.second = nn.Linear(2048, 2048)
        self.last = nn.Linear(2048, 10)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = torch.relu(self.second(x))
        return self.last(x)

    def training_step(self, batch, _):
        x, y = batch
        loss = F.cross_entropy(self(x).flatten(0, 1), y.flatten())
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    data = TensorDataset(torch.randn(8 * 256, 256, 64), torch.randint(10, (8 * 256, 256)))
    trainer = pl.Trainer(accelerator="gpu", devices=1, max_epochs=3)
    trainer.fit(Classifier(), DataLoader(data, batch_size=256, num_workers=2))
