"""An autoregressive transformer of x-transformers: rotary positions, GLU, validation, then generation."""

import torch
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

model = TransformerWrapper(
    num_tokens=256,
    max_seq_len=1024,
    attn_layers=Decoder(dim=512, depth=6, heads=8, rotary_pos_emb=True, ff_glu=True, attn_flash=True),
)
model = AutoregressiveWrapper(model)
model.cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)


def cycle():
    while True:
        yield torch.randint(0, 256, (8, 1025)).cuda()


batches = cycle()
for _step in range(3):
    model.train()
    for _ in range(2):
        loss = model(next(batches))
        (loss / 2).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()

model.eval()
with torch.no_grad():
    print(f"validation loss: {model(next(batches)).item():.3f}")
    sample = model.generate(prompts=next(batches)[:2, :64], seq_len=64)
print(sample.shape)
