"""A Llama of 1 B parameters in bf16: 16 prompts of 1,024 tokens, 512 new ones, and a growing cache."""

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
prompts = torch.randint(3, 128256, (16, 1024), device="cuda")
with torch.no_grad():
    tokens = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=512,
        min_new_tokens=512,
        do_sample=False,
        pad_token_id=0,
    )
print(tokens.shape)
