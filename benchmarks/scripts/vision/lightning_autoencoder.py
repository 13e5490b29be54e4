"""A convolutional autoencoder as a LightningModule: fit with mixed precision and a validation loop."""

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Autoencoder(pl.LightningModule):
    def __init__(self, width=64, latent=256):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1),
            nn.GELU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.GELU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.GELU(),
            nn.Flatten(),
            nn.Linear(2 * width * 16 * 16, latent),
        )
        self.expand = nn.Linear(latent, 2 * width * 16 * 16)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(2 * width, width, 3, stride=2, padding=1, output_padding=1),
            nn.GELU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.GELU(),
            nn.ConvTranspose2d(width, 3, 3, stride=2, padding=1, output_padding=1),
            nn.Tanh(),
        )

    def forward(self, x):
        return self.decoder(self.expand(self.encoder(x)).view(x.size(0), -1, 16, 16))

    def loss(self, batch):
        return nn.functional.mse_loss(self(batch[0]), batch[0])

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


train = DataLoader(TensorDataset(torch.rand(768, 3, 64, 64) * 2 - 1), batch_size=256, shuffle=True)
val = DataLoader(TensorDataset(torch.rand(512, 3, 64, 64) * 2 - 1), batch_size=256)
trainer = pl.Trainer(
    max_epochs=1,
    accelerator="gpu",
    devices=1,
    precision="16-mixed",
    logger=False,
    enable_checkpointing=False,
)
trainer.fit(Autoencoder(), train, val)
