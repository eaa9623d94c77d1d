"""axolotl: its trainer on top of transformers', and whether the number of labels reaches the model."""

import os

from axolotl.core.trainers.base import AxolotlTrainer
from axolotl.core.training_args import AxolotlTrainingArguments
from datasets import Dataset
from transformers import DataCollatorForSeq2Seq

from samestep.experiments.conformance.adapter import Measurement, Setting, process_group
from samestep.experiments.conformance.frameworks import tiny_llama
from samestep.experiments.conformance.frameworks.trl import tokenizer
from samestep.experiments.conformance.scenarios import Scenario

GLOBAL = dict.fromkeys("ABCDE", "global_token_mean")
SETTINGS = (
    Setting(
        "default",
        {"zh": "AxolotlTrainer 默认，Llama 模型", "en": "AxolotlTrainer, defaults, a Llama"},
        {
            "zh": "transformers 的 Trainer 数好窗口的标签，交给接受它的模型。0.19.0 把每个模型都当作不接受，"
            "于是退回各微批的均值，也没有提示；后来改成看模型的损失函数。",
            "en": "The Trainer of transformers counts the window's labels for a model that takes the count. 0.19.0 "
            "treats every model as one that does not, and falls back to the means of micro-batches, without a word; "
            "later releases look at the model's loss function.",
        },
        GLOBAL,
        tolerance=tiny_llama.TOLERANCE,
        releases={"0.19.0": dict.fromkeys("ABCDE", "microbatch_equal")},
    ),
    Setting(
        "flag_restored",
        {"zh": "model_accepts_loss_kwargs 改回 True", "en": "model_accepts_loss_kwargs put back to True"},
        {
            "zh": "构造之后把标志改回来：模型重新得到标签数。",
            "en": "The flag is put back after construction, and the model gets the count again.",
        },
        {"B": "global_token_mean", "D": "global_token_mean"},
        tolerance=tiny_llama.TOLERANCE,
        releases={"0.19.0": {"B": "global_token_mean", "D": "global_token_mean"}},
    ),
)


class InOrderTrainer(tiny_llama.InOrder, AxolotlTrainer):
    pass


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Measurement | None:
    """Train the windows of the scenario as one epoch, and read the last update."""
    process_group()
    tiny_llama.forget()
    os.environ["ACCELERATE_USE_CPU"] = "true"  # it asks accelerate for the processes before the trainer says CPU
    model = tiny_llama.model()
    record, samples = tiny_llama.Record(model), tiny_llama.Samples(scenario)
    words = tokenizer()
    trainer = InOrderTrainer(
        model=model,
        args=AxolotlTrainingArguments(bf16=False, **tiny_llama.arguments(scenario)),
        train_dataset=Dataset.from_list(
            [{name: value.tolist() for name, value in sample.items()} for sample in samples.dealt()]
        ),
        data_collator=DataCollatorForSeq2Seq(words),
        processing_class=words,
        callbacks=[record],
    )
    if setting == "flag_restored":
        trainer.model_accepts_loss_kwargs = True
    trainer.train()
    return tiny_llama.read(record, samples, rank)
