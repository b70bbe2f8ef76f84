"""The local scheduler: this machine as a cluster of simulated nodes."""
