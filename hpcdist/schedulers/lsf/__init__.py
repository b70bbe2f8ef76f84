"""IBM Spectrum LSF: jobs by bsub, states and the past by bjobs."""
