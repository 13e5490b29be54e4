"""Extract features of speech with torchaudio's wav2vec 2.0 model, recording by recording."""

import torch
import torchaudio

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = torchaudio.models.wav2vec2_base().to(device).eval()
with torch.inference_mode():
    for seconds in (5, 12, 30):
        waveform = torch.randn(8, seconds * 16_000).to(device)
        features, _ = model.extract_features(waveform)
        print(seconds, len(features), features[-1].shape)
