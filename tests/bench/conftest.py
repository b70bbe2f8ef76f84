"""Runs of the jobs that come with hpcdist, on simulated nodes."""

from simulated_jobs import forking, submit_job

__all__ = ["forking", "submit_job"]
