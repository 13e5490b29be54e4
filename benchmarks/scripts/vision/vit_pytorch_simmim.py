"""Train a vision transformer of vit-pytorch by masked image modelling, then classify a batch."""

import torch
from vit_pytorch import ViT
from vit_pytorch.simmim import SimMIM

encoder = ViT(image_size=256, patch_size=16, num_classes=1000, dim=1024, depth=6, heads=8, mlp_dim=2048)
mim = SimMIM(encoder=encoder, masking_ratio=0.5).cuda()
optimizer = torch.optim.Adam(mim.parameters(), lr=1e-4)
for step in range(3):
    images = torch.randn(32, 3, 256, 256).cuda()
    loss = mim(images)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.3f}")

encoder.eval()
with torch.no_grad():
    predictions = encoder(torch.randn(64, 3, 256, 256).cuda())
print(predictions.shape)
