"""TRL: the SFTTrainer on tokenised prompts and completions."""

from typing import Any

from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from samestep.experiments.conformance.adapter import Measurement, Setting, process_group
from samestep.experiments.conformance.frameworks import tiny_llama
from samestep.experiments.conformance.reader import IGNORED
from samestep.experiments.conformance.scenarios import Scenario

SETTINGS = (
    Setting(
        "default",
        {"zh": "SFTTrainer，只训练补全部分", "en": "SFTTrainer, completions only"},
        {
            "zh": "completion_only_loss=True：已分词的数据不写明这一项，completion_mask 一列就被忽略。"
            "其余都是默认值，只关掉了 bf16 和梯度检查点。",
            "en": "completion_only_loss=True: without it, tokenised data's completion_mask is ignored. All else is the "
            "default, but for bf16 and gradient checkpointing, which are off.",
        },
        {**dict.fromkeys("ABCDE", "global_token_mean"), "F": "moved", "clip": "true_norm"},
        tolerance=tiny_llama.TOLERANCE,
    ),
    tiny_llama.AVERAGE_OFF,
)


class InOrderTrainer(tiny_llama.InOrder, SFTTrainer):
    pass


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Measurement | None:
    """Train the windows of the scenario as one epoch, and read the last update."""
    process_group()
    tiny_llama.forget()
    model = tiny_llama.model()
    record = tiny_llama.Record(model)
    samples = tiny_llama.Samples(scenario)
    given: dict[str, Any] = {} if setting == "default" else {"average_tokens_across_devices": False}
    trainer = InOrderTrainer(
        model=model,
        args=SFTConfig(
            completion_only_loss=True,
            max_length=None,
            bf16=False,
            gradient_checkpointing=False,
            **tiny_llama.arguments(scenario),
            **given,
        ),
        train_dataset=Dataset.from_list([described(sample) for sample in samples.dealt()]),
        processing_class=tokenizer(),
        callbacks=[record],
    )
    trainer.train()
    return tiny_llama.read(record, samples, rank)


def described(sample: tiny_llama.Sample) -> dict[str, list[int]]:
    """Tokens, and which of them belong to the completion."""
    return {
        "input_ids": sample["input_ids"].tolist(),
        "completion_mask": (sample["labels"] != IGNORED).long().tolist(),
    }


def tokenizer() -> PreTrainedTokenizerFast:
    """One is asked for; the data are tokenised already."""
    words = {f"t{i}": i for i in range(tiny_llama.VOCABULARY)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="t0")), pad_token="t0", eos_token="t2"
    )
