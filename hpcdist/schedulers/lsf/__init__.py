"""The scheduler IBM Spectrum LSF, and engines that are compatible with it."""
