"""ms-swift: its trainer for supervised fine-tuning, on a model and a template that it loaded itself.

The samples are tokenised already: its template only puts them into batches.
"""

import os
from functools import cache
from typing import Any

import torch
from datasets import Dataset
from swift.model import get_model_processor
from swift.template import get_template
from swift.trainers import Seq2SeqTrainer, Seq2SeqTrainingArguments

from samestep.experiments.conformance.adapter import Measurement, Setting, process_group
from samestep.experiments.conformance.frameworks import tiny_llama
from samestep.experiments.conformance.frameworks.trl import tokenizer
from samestep.experiments.conformance.scenarios import Scenario

SETTINGS = (
    Setting(
        "default",
        {"zh": "Seq2SeqTrainer 默认", "en": "Seq2SeqTrainer, defaults"},
        {
            "zh": "它总把标签数交给模型，也就是沿用 transformers 的计数：全局 token 平均。",
            "en": "It always hands the count of labels to the model, and counts as transformers does: the global "
            "token mean.",
        },
        dict.fromkeys("ABCDE", "global_token_mean"),
        tolerance=tiny_llama.TOLERANCE,
    ),
    Setting(
        "average_off",
        {"zh": "average_tokens_across_devices=False", "en": "average_tokens_across_devices=False"},
        {
            "zh": "每张卡只数自己的标签：各卡的均值再取平均。",
            "en": "Every rank counts its own labels only: the mean of the ranks' means.",
        },
        dict.fromkeys("ABCDE", "replica_equal"),
        tolerance=tiny_llama.TOLERANCE,
    ),
)


@cache
def stored() -> str:
    """A folder of this rank with the tiny model and its words, as a hub would have them."""
    tiny_llama.model().save_pretrained("tiny")
    words = tokenizer()
    words.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    words.save_pretrained("tiny")
    return os.path.abspath("tiny")


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Measurement | None:
    """Train the windows of the scenario as one epoch, and read the last update."""
    folder = stored()  # before the ranks meet: then only rank 0 would write
    process_group()
    tiny_llama.forget()
    os.environ["ACCELERATE_USE_CPU"] = "true"  # it asks accelerate for the processes before the trainer says CPU
    given: dict[str, Any] = {"average_tokens_across_devices": False} if setting == "average_off" else {}
    model, processor = get_model_processor(
        folder, torch_dtype=torch.float64, device_map="cpu", model_type="llama", attn_impl="eager", use_hf=True
    )
    template = get_template(processor, template_type="default")
    template.set_mode("train")
    record, samples = tiny_llama.Record(model), tiny_llama.Samples(scenario)
    trainer = Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(
            check_model=False,
            bf16=False,
            train_dataloader_shuffle=False,
            gradient_checkpointing=False,
            weight_decay=0.0,  # 0.1 by default, which no re-weighting of tokens explains
            **tiny_llama.arguments(scenario),
            **given,
        ),
        template=template,
        train_dataset=Dataset.from_list(
            [
                {**{name: value.tolist() for name, value in sample.items()}, "length": tiny_llama.WIDTH}
                for sample in samples.dealt()
            ]
        ),
    )
    trainer.add_callback(record)
    trainer.train()
    return tiny_llama.read(record, samples, rank)
