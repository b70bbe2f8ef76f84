"""The run directory: its paths, spec, events, verdict and snapshots."""
