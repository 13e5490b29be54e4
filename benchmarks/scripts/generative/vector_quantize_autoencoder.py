"""An autoencoder with the codebook of vector-quantize-pytorch, as that package's example writes it."""

import torch
import torch.nn as nn
from vector_quantize_pytorch import VectorQuantize

device = "cuda" if torch.cuda.is_available() else "cpu"


class SimpleVQAutoEncoder(nn.Module):
    def __init__(self, codebook_size, **quantizer):
        super().__init__()
        self.layers = nn.ModuleList(
            [
                nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1),
                nn.MaxPool2d(kernel_size=2, stride=2),
                nn.GELU(),
                nn.Conv2d(64, 128, kernel_size=3, stride=1, padding=1),
                nn.MaxPool2d(kernel_size=2, stride=2),
                VectorQuantize(dim=128, codebook_size=codebook_size, accept_image_fmap=True, **quantizer),
                nn.Upsample(scale_factor=2, mode="nearest"),
                nn.Conv2d(128, 64, kernel_size=3, stride=1, padding=1),
                nn.GELU(),
                nn.Upsample(scale_factor=2, mode="nearest"),
                nn.Conv2d(64, 3, kernel_size=3, stride=1, padding=1),
            ]
        )

    def forward(self, x):
        for layer in self.layers:
            if isinstance(layer, VectorQuantize):
                x, indices, commit_loss = layer(x)
            else:
                x = layer(x)
        return x.clamp(-1, 1), indices, commit_loss


torch.manual_seed(1234)
model = SimpleVQAutoEncoder(codebook_size=256, decay=0.8, commitment_weight=1.0).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(3):
    optimizer.zero_grad()
    x = (torch.rand(128, 3, 64, 64) * 2 - 1).to(device)
    out, indices, commit_loss = model(x)
    loss = (out - x).abs().mean() + 10 * commit_loss
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.3f}, active {indices.unique().numel() / 256 * 100:.1f} %")
