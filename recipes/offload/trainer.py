"""transformers' Trainer within a budget of memory:  python recipes/offload/trainer.py [--budget 70%]"""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from oarlock.memory.offload import HostTier, make_plan, profile

parser = argparse.ArgumentParser()
parser.add_argument("--budget", default="70%")
budget = parser.parse_args().budget

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=4,
    use_cache=False,
)
model = LlamaForCausalLM(config).train()
tokens = torch.randint(0, 256, (24, 64))
dataset = [{"input_ids": row, "labels": row} for row in tokens]
trainer = Trainer(
    model,
    TrainingArguments(
        "trainer-output",
        per_device_train_batch_size=8,
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        optim="sgd",
    ),
    train_dataset=dataset,
)
batch = tokens[:8]


def forward_and_backward() -> None:
    model.zero_grad()
    model(input_ids=batch, labels=batch).loss.backward()


with HostTier(out_rate=500e6, in_rate=500e6) as tier:
    plan = make_plan(profile(model, forward_and_backward, tier=tier), budget)
    model.zero_grad()
    print(plan)
    with plan.apply(model, tier=tier) as run:
        trainer.train()
    for record in trainer.state.log_history:
        if "loss" in record:
            print(f"step {record['step']} loss {record['loss']!r}")
    print(f"peak {run.peak} of {plan.budget}")
