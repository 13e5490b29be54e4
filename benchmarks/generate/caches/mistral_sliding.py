"""A Mistral with a sliding window of 256 tokens: the cache stops growing once the window is full."""

import torch
from transformers import MistralConfig, MistralForCausalLM

config = MistralConfig(
    vocab_size=32000,
    hidden_size=1024,
    intermediate_size=3584,
    num_hidden_layers=16,
    num_attention_heads=16,
    num_key_value_heads=4,
    sliding_window=256,
)
model = MistralForCausalLM(config).to("cuda", torch.bfloat16).eval()
prompts = torch.randint(3, 32000, (32, 192), device="cuda")
tokens = model.generate(
    prompts,
    attention_mask=torch.ones_like(prompts),
    max_new_tokens=256,
    min_new_tokens=256,
    do_sample=True,
    top_k=50,
    pad_token_id=0,
)
print(tokens.shape)
