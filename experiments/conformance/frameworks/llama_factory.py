"""LLaMA-Factory: its trainer for supervised fine-tuning, for a text model and for one that comes with a processor.

Its modules import torchaudio for media that no text has: an empty module stands in for it.
"""

import os
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

from datasets import Dataset
from transformers import DataCollatorForSeq2Seq

from samestep.experiments.conformance.adapter import Measurement, Setting, process_group
from samestep.experiments.conformance.frameworks import tiny_llama
from samestep.experiments.conformance.frameworks.trl import tokenizer
from samestep.experiments.conformance.scenarios import Scenario

SETTINGS = (
    Setting(
        "text",
        {"zh": "CustomSeq2SeqTrainer，文本模型", "en": "CustomSeq2SeqTrainer, a text model"},
        {
            "zh": "沿用 transformers 的计数：全局 token 平均。",
            "en": "It counts as transformers does: the global token mean.",
        },
        dict.fromkeys("ABCDE", "global_token_mean"),
        labels=("stubbed",),
        tolerance=tiny_llama.TOLERANCE,
    ),
    Setting(
        "processor",
        {
            "zh": "CustomSeq2SeqTrainer，带处理器（任何多模态模型）",
            "en": "CustomSeq2SeqTrainer, a processor given (any VLM)",
        },
        {
            "zh": "只要传入 processor，标签数就不再交给模型：同样的数据，目标换成了微批等权。",
            "en": "As soon as a processor is given, the model gets no count any more: the same data under another "
            "objective, micro-batches alike.",
        },
        dict.fromkeys("ABCDE", "microbatch_equal"),
        labels=("stubbed",),
        tolerance=tiny_llama.TOLERANCE,
    ),
)


def trainer_class() -> Any:
    """The trainer, in the order of the data."""
    stub = ModuleType("torchaudio")
    stub.__spec__ = ModuleSpec("torchaudio", None)
    sys.modules.setdefault("torchaudio", stub)
    found = import_module("llamafactory.train.sft.trainer").CustomSeq2SeqTrainer
    return type("InOrderTrainer", (tiny_llama.InOrder, found), {})


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Measurement | None:
    """Train the windows of the scenario as one epoch, and read the last update."""
    process_group()
    tiny_llama.forget()
    os.environ["ACCELERATE_USE_CPU"] = "true"  # it asks accelerate for the processes before the trainer says CPU
    model = tiny_llama.model()
    record, samples = tiny_llama.Record(model), tiny_llama.Samples(scenario)
    words, kind = tokenizer(), trainer_class()
    arguments = import_module("llamafactory.hparams")
    trainer = kind(
        finetuning_args=arguments.FinetuningArguments(),
        processor=SimpleNamespace() if setting == "processor" else None,
        model=model,
        args=arguments.TrainingArguments(**tiny_llama.arguments(scenario)),
        train_dataset=Dataset.from_list(
            [{name: value.tolist() for name, value in sample.items()} for sample in samples.dealt()]
        ),
        data_collator=DataCollatorForSeq2Seq(words),
        tokenizer=words,
    )
    if setting == "processor":  # it would save the stand-in beside the model
        for callback in [each for each in trainer.callback_handler.callbacks if "Processor" in type(each).__name__]:
            trainer.remove_callback(callback)
    trainer.add_callback(record)
    trainer.train()
    return tiny_llama.read(record, samples, rank)
