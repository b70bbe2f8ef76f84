"""Measuring a model that is not trained: forms of running it in parallel, and what they gain."""
