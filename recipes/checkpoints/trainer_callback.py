"""Checkpoints in transformers' Trainer: one callback, and `train(resume_from_checkpoint=...)` as ever.

    python recipes/checkpoints/trainer_callback.py my_run --steps 8

Each checkpoint is also a Hugging Face folder, so that `from_pretrained(path)` reads it, and the Trainer, too: it takes
weights and progress from there, and the callback gives it back the optimizer, the schedule and the random numbers.
Nothing in it is a pickle. On one process; under FSDP, pass DTensors as in fsdp_to_tensor_parallel.py.
"""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from oarlock import checkpoint


class FlexCheckpoints(TrainerCallback):
    """Saves every `every` steps, and restores what the Trainer itself does not read.

    Args:
        folder: of the checkpoints.
        every: steps.
        keep_last: how many checkpoints stay.
    """

    def __init__(self, folder: str, every: int, keep_last: int = 2) -> None:
        self.folder = folder
        self.every = every
        self.keep_last = keep_last
        self._random: checkpoint.Checkpoint | None = None

    def latest(self) -> str | None:
        """For `Trainer.train(resume_from_checkpoint=...)`; None where there is no checkpoint yet."""
        found = checkpoint.list_checkpoints(self.folder)
        return str(found[-1]) if found else None

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """The Trainer has loaded weights and its own state."""
        if state.global_step == 0:
            return
        saved = checkpoint.load_checkpoint(Path(self.folder) / f"step-{state.global_step:08d}")
        model, optimizer, schedule = parts["model"], parts["optimizer"], parts["lr_scheduler"]
        tensors, rest = saved.tensors("optimizer"), saved.state["optimizer"]
        checkpoint.load_optimizer(_plain(optimizer), model.named_parameters(), tensors, rest)
        schedule.load_state_dict(saved.state["schedule"])
        self._random = saved

    def on_step_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """The data of the steps before have been passed over, which may have drawn random numbers."""
        if self._random is not None:
            checkpoint.restore_rng(self._random.tensors("rng", rank=0), self._random.rank_state(0))
            self._random = None

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Save."""
        if state.global_step % self.every:
            return
        model, optimizer, schedule = parts["model"], _plain(parts["optimizer"]), parts["lr_scheduler"]
        rng_tensors, rng_state = checkpoint.capture_rng()
        checkpoint.save_checkpoint(
            *(self.folder, state.global_step),
            tensors={
                "model": model.state_dict(),
                "optimizer": checkpoint.optimizer_tensors(optimizer, model.named_parameters()),
            },
            state={
                "optimizer": checkpoint.optimizer_state(optimizer, model.named_parameters()),
                "schedule": schedule.state_dict(),
            },
            rank_tensors={"rng": rng_tensors},
            rank_state=rng_state,
            hf={"model": ""},  # under the model's own names
            files={
                "config.json": model.config.to_json_string().encode(),
                "trainer_state.json": json.dumps(dataclasses.asdict(state)).encode(),
            },
            keep_last=self.keep_last,
        )


def _plain(optimizer: Any) -> torch.optim.Optimizer:
    """accelerate wraps it."""
    return getattr(optimizer, "optimizer", optimizer)


class Numbers(Dataset):
    """Sequences that count up."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = (torch.arange(16) + index) % 64
        return {"input_ids": ids, "labels": ids}


def main() -> None:
    """Train up to a step; a run that exists is continued."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()

    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, attention_dropout=0.1))
    saves = FlexCheckpoints(args.folder, every=4)
    settings = TrainingArguments(
        output_dir=f"{args.folder}/trainer",
        max_steps=args.steps,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=settings, train_dataset=Numbers(), callbacks=[saves])
    trainer.train(resume_from_checkpoint=saves.latest())
    for entry in trainer.state.log_history:
        if "loss" in entry:
            print(f"step {entry['step']} loss {entry['loss']}")


if __name__ == "__main__":
    main()
