"""`python -m slurm_cluster SPEC`: the supervisor of one cluster."""

import sys

from slurm_cluster.supervisor import main

main(sys.argv[1])
