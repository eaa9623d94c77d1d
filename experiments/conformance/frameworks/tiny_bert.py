"""A tiny BERT as a sentence encoder, trained for one update by sentence-transformers' Trainer, and the reading.

The reference embeds the same ids with the bare BERT: the mean over positions, made as long as 1.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from datasets import Dataset
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from torch.nn import functional
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from samestep.experiments.conformance.adapter import Contrastive, process_group
from samestep.experiments.conformance.frameworks import contrastive_pairs, tiny_llama
from samestep.experiments.conformance.scenarios import Scenario

FOLDER = "tiny-bert"
SPECIAL = ("[PAD]", "[UNK]")
FIRST = len(SPECIAL)
"""Both texts of pair i begin with word FIRST + i, which no other text has."""
VOCABULARY = 64
COMMON = 32
"""The first of the words that any text may have."""
LENGTH = 5
SCALE = 20.0
"""The losses' own default: logits are 20 × cosine."""


def train(scenario: Scenario, *, gather: bool, cached: bool, by_microbatch: bool) -> Contrastive:
    """One update, with as many micro-batches as the scenario has. `cached`: the loss that embeds 2 texts at a time.

    `by_microbatch`: compare with the mean of the micro-batches' losses, instead of one loss over the window's pairs.
    """
    process_group()
    tiny_llama.forget()
    model, bert, ids = encoder(), bare(), texts(scenario.total)
    if cached:
        loss = CachedMultipleNegativesRankingLoss(model, mini_batch_size=2, gather_across_devices=gather)
    else:
        loss = MultipleNegativesRankingLoss(model, gather_across_devices=gather)
    before = tiny_llama.flat(model)
    trainer = Watched(
        model=model,
        args=SentenceTransformerTrainingArguments(
            **tiny_llama.arguments(scenario) | {"per_device_train_batch_size": scenario.counts[0][0]}
        ),
        train_dataset=Dataset.from_dict({"anchor": words(ids[0]), "positive": words(ids[1])}),
        loss=loss,
    )
    trainer.train()
    if trainer.state.global_step != 1:
        raise RuntimeError(f"{trainer.state.global_step} updates instead of one")
    update = (before - tiny_llama.flat(model)) / tiny_llama.LEARNING_RATE
    microbatches = together(trainer.seen)
    parts = microbatches if by_microbatch else [[pair for part in microbatches for pair in part]]
    return contrastive_pairs.compared({"encoder": update}, {"encoder": gradient(bert, ids, parts)})


class Watched(SentenceTransformerTrainer):
    """Notes which pairs this rank was given; the Trainer shuffles them."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.seen: list[list[int]] = []

    def collect_features(self, inputs: Any) -> Any:
        features, labels = super().collect_features(inputs)
        self.seen.append((features[0]["input_ids"][:, 0] - FIRST).tolist())
        return features, labels


def together(seen: Sequence[Sequence[int]]) -> contrastive_pairs.Parts:
    """The pairs of each micro-batch on all ranks. `seen`: this rank's."""
    gathered: list[list[list[int]]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(gathered, seen)
    return [[pair for microbatch in turn for pair in microbatch] for turn in zip(*gathered, strict=True)]


def gradient(bert: Any, ids: Tensor, parts: contrastive_pairs.Parts) -> Tensor:
    """Of the mean over the parts of the loss within each, with respect to all parameters, in one process."""
    queries, documents = (
        functional.normalize(bert(input_ids=each).last_hidden_state.mean(dim=1), dim=1) for each in ids
    )
    contrastive_pairs.mean(
        [contrastive_pairs.info_nce(queries[part], documents[part], SCALE) for part in parts]
    ).backward()  # type: ignore[no-untyped-call]
    return torch.cat([parameter.grad.flatten() for parameter in bert.parameters()])


def texts(count: int) -> Tensor:
    """Ids [2, count, LENGTH] of queries and documents."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(COMMON, VOCABULARY, (2, count, LENGTH), generator=generator)
    ids[:, :, 0] = FIRST + torch.arange(count)
    return ids


def words(ids: Tensor) -> list[str]:
    return [" ".join(f"w{word}" for word in text) for text in ids.tolist()]


def bare() -> BertModel:
    """The same weights each time; without the pooler, which no sentence embedding uses."""
    torch.manual_seed(0)
    return BertModel(config(), add_pooling_layer=False).double()


def encoder() -> SentenceTransformer:
    """The same BERT with the mean over positions, loaded from a folder, as the library wants it."""
    save()
    transformer = Transformer(FOLDER, model_kwargs={"add_pooling_layer": False, "dtype": torch.float64})
    return SentenceTransformer(modules=[transformer, Pooling(config().hidden_size)], device="cpu")


@cache
def save() -> None:
    """Configuration, weights and tokenizer for this process. `save_pretrained` of a model writes on rank 0 only."""
    config().save_pretrained(FOLDER)
    save_file(bare().state_dict(), f"{FOLDER}/model.safetensors", metadata={"format": "pt"})
    vocabulary = {word: id for id, word in enumerate([*SPECIAL, *(f"w{id}" for id in range(FIRST, VOCABULARY))])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=SPECIAL[1]))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=SPECIAL[0], unk_token=SPECIAL[1], model_max_length=LENGTH
    ).save_pretrained(FOLDER)


def config() -> BertConfig:
    return BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
