"""Beam search with an OPT in fp16: the cache is reordered at every token."""

import torch
from transformers import OPTConfig, OPTForCausalLM

config = OPTConfig(hidden_size=1024, num_hidden_layers=12, ffn_dim=4096, num_attention_heads=16)
model = OPTForCausalLM(config).half().cuda().eval()
prompts = torch.randint(4, 50272, (8, 128), device="cuda")
tokens = model.generate(
    prompts,
    attention_mask=torch.ones_like(prompts),
    max_new_tokens=96,
    min_new_tokens=96,
    num_beams=4,
    pad_token_id=1,
)
print(tokens.shape)
