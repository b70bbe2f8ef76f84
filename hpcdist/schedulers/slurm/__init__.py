"""Slurm: jobs by sbatch, states by squeue, and the past by sacct."""
