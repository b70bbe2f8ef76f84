"""Runs as they are now: their states, following and watching them, freeing their space."""
