"""The host at hand: processes, memory, CPUs, GPUs, ports and network."""
