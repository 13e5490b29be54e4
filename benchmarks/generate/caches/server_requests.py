"""Requests to a Llama one after another: prompts of different lengths that begin with one cached prefix."""

import copy

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=32000,
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=12,
    num_attention_heads=16,
    num_key_value_heads=4,
)
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
prefix = torch.randint(3, 32000, (8, 256), device="cuda")
with torch.inference_mode():
    shared = model(prefix, past_key_values=DynamicCache(config=config)).past_key_values
    for length in (64, 192, 32):
        question = torch.randint(3, 32000, (8, length), device="cuda")
        prompts = torch.cat([prefix, question], dim=1)
        tokens = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            past_key_values=copy.deepcopy(shared),
            max_new_tokens=64,
            min_new_tokens=64,
            do_sample=False,
            pad_token_id=0,
        )
        print(tokens.shape)
