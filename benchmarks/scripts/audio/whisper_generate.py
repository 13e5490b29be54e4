"""Transcribe with Whisper of transformers: the encoder once, then greedy decoding, fp16."""

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

config = WhisperConfig(
    d_model=768,
    encoder_layers=12,
    decoder_layers=12,
    encoder_attention_heads=12,
    decoder_attention_heads=12,
    encoder_ffn_dim=3072,
    decoder_ffn_dim=3072,
)
model = WhisperForConditionalGeneration(config).to("cuda", torch.float16).eval()
features = torch.randn(8, 80, 3000).to("cuda", torch.float16)
with torch.no_grad():
    tokens = model.generate(input_features=features, max_new_tokens=40, min_new_tokens=40)
print(tokens.shape)
