"""Supervised fine-tuning of a small Qwen2 with trl's SFTTrainer on examples of different lengths."""

import random
import tempfile

from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import SFTConfig, SFTTrainer

random.seed(0)
vocabulary = {"<pad>": 0, "<eos>": 1, "<unk>": 2, **{f"t{i}": i for i in range(3, 32000)}}
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>")),
    pad_token="<pad>",
    eos_token="<eos>",
    unk_token="<unk>",
)
rows = [[random.randrange(3, 32000) for _ in range(random.randint(200, 700))] for _ in range(64)]
dataset = Dataset.from_dict({"input_ids": rows})
model = Qwen2ForCausalLM(
    Qwen2Config(
        vocab_size=32000,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=8,
        num_attention_heads=14,
        num_key_value_heads=2,
        pad_token_id=0,
        eos_token_id=1,
    )
)
trainer = SFTTrainer(
    model=model,
    args=SFTConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=3,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_length=512,
        bf16=True,
        save_strategy="no",
        report_to="none",
    ),
    train_dataset=dataset,
    processing_class=tokenizer,
)
trainer.train()
