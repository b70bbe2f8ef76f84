"""What a run uses of its nodes over time: GPUs through NVML, CPUs and memory through psutil.

Every agent has one sampler, a thread that lives as long as an attempt's ranks do, and writes
`events/node-NNNNN.jsonl` (docs/events.md). It begins a second after the ranks, so that the time to
their first step stays what it was, and whatever fails in it ends the sampling and nothing else.
Measured with 8 ranks of 8 DataLoader workers each, every 5 s: 9 CPU seconds per hour and node.

processes and gpus take the samples, windows sums them up, sampler is the thread, figures are the
events that it writes. Only those two import psutil and pynvml, and not before the first sample.
"""
