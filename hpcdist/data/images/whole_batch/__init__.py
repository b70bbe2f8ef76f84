"""Transforms of all images of a batch at once, where the model is."""
