"""A Gemma 3 whose layers have sliding and full attention in turn, with a hybrid static cache."""

import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

config = Gemma3TextConfig(
    vocab_size=65536,
    hidden_size=1152,
    intermediate_size=6912,
    num_hidden_layers=12,
    num_attention_heads=4,
    num_key_value_heads=1,
    head_dim=256,
    sliding_window=512,
)
model = Gemma3ForCausalLM(config).to("cuda", torch.bfloat16).eval()
prompts = torch.randint(3, 65536, (16, 480), device="cuda")
tokens = model.generate(
    prompts,
    attention_mask=torch.ones_like(prompts),
    max_new_tokens=96,
    min_new_tokens=96,
    do_sample=False,
    pad_token_id=0,
    cache_implementation="static",
    disable_compile=True,
)
print(tokens.shape)
