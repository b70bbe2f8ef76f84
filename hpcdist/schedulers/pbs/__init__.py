"""PBS (OpenPBS and PBS Professional): jobs by qsub, states and the past by qstat."""
