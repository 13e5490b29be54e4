"""A Llama of 1 B parameters in bf16 with a static cache, which is allocated once for the whole length."""

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

config = LlamaConfig(
    vocab_size=128256,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    max_position_embeddings=8192,
    tie_word_embeddings=True,
)
with torch.device("cuda"):
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
prompts = torch.randint(3, 128256, (8, 512), device="cuda")
with torch.no_grad():
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
