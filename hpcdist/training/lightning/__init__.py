"""The same training by PyTorch Lightning's Trainer: its modules import pytorch_lightning."""
