"""A Qwen 2 with an offloaded cache: keys and values of the other layers stay in host memory."""

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

config = Qwen2Config(
    vocab_size=65536,
    hidden_size=896,
    intermediate_size=4864,
    num_hidden_layers=12,
    num_attention_heads=14,
    num_key_value_heads=2,
)
model = Qwen2ForCausalLM(config).to("cuda", torch.float16).eval()
prompts = torch.randint(3, 65536, (32, 512), device="cuda")
tokens = model.generate(
    prompts,
    attention_mask=torch.ones_like(prompts),
    max_new_tokens=64,
    min_new_tokens=64,
    do_sample=False,
    pad_token_id=0,
    cache_implementation="offloaded",
)
print(tokens.shape)
