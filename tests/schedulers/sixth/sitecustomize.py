"""Imported by every Python that starts with this folder on its PYTHONPATH: the one line in the
table."""

from hpcdist.cluster.schedulers import SCHEDULERS

SCHEDULERS["pile"] = "pile.scheduler"
