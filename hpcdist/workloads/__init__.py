"""What every rank runs: one module per workload, and the table of them."""
