"""What a run uses of its nodes over time: GPUs through NVML, CPUs and memory through psutil.

Every agent has one sampler, a thread that lives as long as an attempt's ranks do, and writes
`events/node-NNNNN.jsonl` (docs/events.md). It begins two seconds after the ranks, so that the time
to their first step stays what it was, and whatever fails in it ends the sampling and nothing else.
Measured every 5 s: 3 CPU seconds per hour with 2 ranks, and 0.06 s to begin with; 12 per hour at
most with 8 ranks of 8 DataLoader workers each.

processes and gpus take the samples, windows sums them up, sampler is the thread, figures are the
events that it writes. Only those two import psutil and pynvml, and not before the first sample.
"""
