"""From a name, a job file or a script, and flags, to one checked value."""

from hpcdist.job.load import Flag, LoadedJob, load_job, locate, parse_flag

__all__ = ["Flag", "LoadedJob", "load_job", "locate", "parse_flag"]
