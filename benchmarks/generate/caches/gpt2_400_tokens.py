"""GPT-2 in fp32, batch 32: greedy decoding of 400 tokens with a growing cache, which fragments the memory."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(GPT2Config()).to("cuda").eval()
prompts = torch.randint(0, 50257, (32, 16), device="cuda")
tokens = model.generate(
    prompts,
    attention_mask=torch.ones_like(prompts),
    max_new_tokens=400,
    min_new_tokens=400,
    do_sample=False,
    pad_token_id=50256,
)
print(tokens.shape)
