"""Train a sentence embedding on pairs with a loss of sentence-transformers, then encode a corpus."""

import random
import tempfile

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

words = ["[PAD]", "[UNK]", *(f"word{i}" for i in range(8000))]
tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
folder = tempfile.mkdtemp()
PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(
    folder
)
BertModel(BertConfig(vocab_size=len(words), num_hidden_layers=6)).save_pretrained(folder)


def sentence(length):
    return " ".join(random.choices(words[2:], k=length))


random.seed(0)
transformer = Transformer(folder, max_seq_length=128)
model = SentenceTransformer(modules=[transformer, Pooling(768, "mean")], device="cuda")
loss_fn = MultipleNegativesRankingLoss(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
model.train()
for step in range(3):
    pairs = [(sentence(random.randint(8, 40)), sentence(random.randint(40, 120))) for _ in range(64)]
    features = [model.preprocess([pair[side] for pair in pairs]) for side in (0, 1)]
    features = [{k: v.to("cuda") if hasattr(v, "to") else v for k, v in f.items()} for f in features]
    loss = loss_fn(features, None)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item():.3f}")

embeddings = model.encode([sentence(100) for _ in range(512)], batch_size=128)
print(embeddings.shape, model.similarity(embeddings[:4], embeddings).shape)
