"""The models that are trained, and what they may be called with."""
