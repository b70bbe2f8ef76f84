"""transformers' Trainer on a tiny model with random weights, made by hand."""

import json
import os

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(0)
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2, use_cache=False)
)
tokens = torch.randint(0, 50, (64, 16), generator=torch.Generator().manual_seed(0))
data = [{"input_ids": row, "labels": row} for row in tokens]
arguments = TrainingArguments(
    output_dir="trained",
    max_steps=6,
    per_device_train_batch_size=4,
    logging_steps=2,
    save_steps=3,
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=data)
result = trainer.train()
losses = [
    [entry["step"], repr(entry["loss"])] for entry in trainer.state.log_history if "loss" in entry
]
with open(f"losses-{os.environ['RANK']}.json", "w") as file:
    json.dump([losses, repr(result.training_loss), trainer.args.world_size], file)
