"""Fine-tuning with TRL's `SFTTrainer`, each case by name.

trl_cases.py FOLDER CASE...: see `answer_cases`. A case returns what the Trainer saw: the losses of its
batches, their tokens, and what it logged.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from support.frameworks.cases import answer_cases

SPECIAL, WORDS = ["<pad>", "<eos>", "<unk>"], 40


class Observed(SFTTrainer):  # type: ignore[misc]
    """Keeps what its loop sees."""

    def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
        loss = super().training_step(model, inputs, *rest)
        mask = inputs.get("attention_mask")
        self.seen.append((float(loss), int(inputs["input_ids"].numel() if mask is None else mask.sum())))
        return loss


def train(lora: LoraConfig | None = None, **options: Any) -> Any:
    torch.manual_seed(1)
    names = {name: index for index, name in enumerate([*SPECIAL, *(f"w{each}" for each in range(WORDS))])}
    words = Tokenizer(WordLevel(names, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    config = GPT2Config(
        n_layer=1, n_head=2, n_embd=16, vocab_size=len(names), n_positions=32, bos_token_id=1, eos_token_id=1
    )
    texts = [" ".join(f"w{row * place % WORDS}" for place in range(3 + row % 7)) for row in range(32)]
    data = Dataset.from_dict({"text": texts})
    arguments = SFTConfig(
        output_dir=tempfile.mkdtemp(), max_steps=4, per_device_train_batch_size=2, max_length=16,
        gradient_accumulation_steps=2, logging_steps=1, save_steps=2, eval_strategy="steps", eval_steps=2,
        report_to=[], use_cpu=True, bf16=False, disable_tqdm=True, **options,
    )  # fmt: skip
    trainer = Observed(
        model=GPT2LMHeadModel(config), args=arguments, train_dataset=data, processing_class=tokenizer,
        eval_dataset=data.select(range(4)), peft_config=lora,
    )  # fmt: skip
    trainer.seen = []
    trainer.train()
    logged = [each["loss"] for each in trainer.state.log_history if "loss" in each]
    return {"seen": trainer.seen, "logged": logged}


def full() -> Any:
    return train()


def lora() -> Any:
    """Of the model's weights only small matrices beside them are trained."""
    return train(LoraConfig(r=2, target_modules=["c_attn"], task_type="CAUSAL_LM"))


def packed() -> Any:
    """Several texts in one row."""
    return train(packing=True, packing_strategy="wrapped")


if __name__ == "__main__":
    answer_cases(globals())
