"""hpcdist: PyTorch jobs from a laptop to Slurm or LSF with one command.

Importing hpcdist imports no torch: what is heavy is imported where it is used.
"""

from hpcdist.version import __version__

__all__ = ["__version__"]
