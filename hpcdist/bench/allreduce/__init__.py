"""Measuring what ranks need for a collective: used by the benchmark `allreduce` and by `check`."""
