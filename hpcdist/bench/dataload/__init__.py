"""The data-loading benchmark: what it measures, and what follows from it."""
