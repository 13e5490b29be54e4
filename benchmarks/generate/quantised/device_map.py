"""Generation from a checkpoint that is loaded in bf16 with a device map: the peak is while it loads."""

import tempfile

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

config = LlamaConfig(
    vocab_size=32000,
    hidden_size=2048,
    intermediate_size=5632,
    num_hidden_layers=4,
    num_attention_heads=32,
    num_key_value_heads=4,
)
with tempfile.TemporaryDirectory() as folder:
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.bfloat16,
        device_map="auto",
    )
prompts = torch.randint(3, 32000, (8, 128), device="cuda")
tokens = model.generate(
    prompts,
    attention_mask=torch.ones_like(prompts),
    max_new_tokens=40,
    min_new_tokens=40,
    do_sample=False,
    pad_token_id=0,
)
print(tokens.shape)
