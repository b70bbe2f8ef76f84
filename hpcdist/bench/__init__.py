"""The benchmarks that ranks run: all-reduce, inference and data loading."""
