"""A simulated LSF for tests: its commands on PATH, behind which jobs really run on this machine.

`Site` in site.py is what tests use. One daemon per site stands for LSF's daemons on all hosts; the
commands carry what they were given to it, and print what it answers. It holds to the documentation
of IBM Spectrum LSF 10.1, and can be an older engine that knows less of it.
"""
