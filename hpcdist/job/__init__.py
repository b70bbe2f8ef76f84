"""From a name, a job file or a script, and flags, to one checked value."""
