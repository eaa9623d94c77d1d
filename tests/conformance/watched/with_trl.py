"""TRL's SFTTrainer, with prompts whose tokens have no label."""

import sys
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

torch.manual_seed(0)
words = [f"w{number}" for number in range(60)]
vocabulary = {word: number for number, word in enumerate(["<pad>", "<eos>", "<unk>", *words])}
tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )
)  # fmt: skip
generator = torch.Generator().manual_seed(5)


def text(length: int) -> str:
    return " ".join(words[number] for number in torch.randint(0, 60, (length,), generator=generator).tolist())


data = Dataset.from_list([{"prompt": text(3), "completion": " " + text(1 + number % 9)} for number in range(28)])
with tempfile.TemporaryDirectory() as folder:
    arguments = SFTConfig(
        folder, per_device_train_batch_size=2, gradient_accumulation_steps=3, num_train_epochs=1, report_to=[],
        use_cpu=True, save_strategy="no", disable_tqdm=True, max_grad_norm=0.5, bf16="bf16" in sys.argv,
        gradient_checkpointing=True,
    )  # fmt: skip
    SFTTrainer(model, args=arguments, train_dataset=data, processing_class=fast).train()
