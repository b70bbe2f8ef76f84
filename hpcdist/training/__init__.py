"""The training loop, strategies, models and checkpoints."""
