#!/bin/bash
# hpcdist: {{ job_comment }}
# Run once for each of the {{ num_nodes }} simulated nodes, at the same time; SUBMITIT_LOCAL_GLOBALID is the number of the node.
{{ setup }}
set -euo pipefail
{{ own_folders }}
cd {{ cwd | quote }}
export {{ settings }}
# Libraries read these when they are loaded. Variables that are already set keep their values.
export {{ environment }}
# Without the working directory on the module path: a random.py that lies there must not stand in for the standard
# library's.
exec {{ python | quote }} -u -c '
import sys
sys.path[:] = [folder for folder in sys.path if folder]
from hpcdist.entry import main
main(is_local=True)
' {{ submitit_folder | quote }}
