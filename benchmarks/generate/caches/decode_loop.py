"""A decoding loop written by hand over a GPT-2 in fp16, with its cache as an argument."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(GPT2Config()).half().to("cuda").eval()
tokens = torch.randint(0, 50257, (64, 128), device="cuda")
cache = None
with torch.no_grad():
    inputs = tokens
    for _ in range(128):
        output = model(inputs, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        inputs = output.logits[:, -1].argmax(-1, keepdim=True)
        tokens = torch.cat([tokens, inputs], dim=1)
print(tokens.shape)
