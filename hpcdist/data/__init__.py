"""Data sets by name."""
