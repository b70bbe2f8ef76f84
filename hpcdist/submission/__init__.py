"""From a job and a profile to a queued run."""
