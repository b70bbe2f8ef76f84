"""Checkpoints: what they hold, how they are saved, found and resumed from."""
