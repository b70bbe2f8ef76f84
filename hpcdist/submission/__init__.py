"""From a job and a profile to queued runs."""
