"""Speech recognition with torchaudio: mel spectrograms on the GPU, a Conformer, and the CTC loss."""

import torch
import torchaudio

device = "cuda"
mel = torchaudio.transforms.MelSpectrogram(sample_rate=16_000, n_fft=400, hop_length=160, n_mels=80).to(
    device
)
conformer = torchaudio.models.Conformer(
    input_dim=256, num_heads=4, ffn_dim=1024, num_layers=8, depthwise_conv_kernel_size=31
).to(device)
inside = torch.nn.Linear(80, 256).to(device)
outside = torch.nn.Linear(256, 32).to(device)
modules = torch.nn.ModuleList([inside, conformer, outside])
optimizer = torch.optim.AdamW(modules.parameters(), lr=3e-4)
criterion = torch.nn.CTCLoss(blank=0, zero_infinity=True)


def forward(waveforms):
    features = (mel(waveforms) + 1e-6).log().transpose(1, 2)
    lengths = torch.full((len(features),), features.shape[1], device=device)
    frames, lengths = conformer(inside(features), lengths)
    return outside(frames).log_softmax(dim=-1), lengths


modules.train()
for step in range(3):
    waveforms = torch.randn(16, 160_000).to(device)  # ten seconds each
    targets = torch.randint(1, 32, (16, 120)).to(device)
    log_probs, lengths = forward(waveforms)
    loss = criterion(log_probs.transpose(0, 1), targets, lengths, torch.full((16,), 120, device=device))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(modules.parameters(), 1.0)
    optimizer.step()
    print(f"step {step}: loss {loss.item():.3f}")

modules.eval()
with torch.inference_mode():
    log_probs, _ = forward(torch.randn(4, 320_000).to(device))
print(log_probs.argmax(dim=-1).shape)
