"""A Llama whose cache is kept in 4 bits by quanto, with the last 128 tokens in bf16."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=32000,
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=8,
    num_attention_heads=16,
    num_key_value_heads=8,
)
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
prompts = torch.randint(3, 32000, (16, 512), device="cuda")
tokens = model.generate(
    prompts,
    attention_mask=torch.ones_like(prompts),
    max_new_tokens=160,
    min_new_tokens=160,
    do_sample=False,
    pad_token_id=0,
    cache_implementation="quantized",
    cache_config={"backend": "quanto", "nbits": 4},
)
print(tokens.shape)
