"""Drills: a job, for two minutes, while what will go wrong one day goes wrong now."""
