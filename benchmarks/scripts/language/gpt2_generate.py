"""Generate text with GPT-2 in fp32: greedy decoding with a growing key-value cache."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(GPT2Config()).to("cuda").eval()
prompts = torch.randint(0, 50257, (16, 32), device="cuda")
tokens = model.generate(
    prompts,
    attention_mask=torch.ones_like(prompts),
    max_new_tokens=160,
    do_sample=False,
    pad_token_id=50256,
)
print(tokens.shape)
