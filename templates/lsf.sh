#!/bin/bash
# hpcdist: {{ job_comment }}
#BSUB {{ directives }}

# LSF copies a job's output when the job has ended. This file can be read at once.
logs={{ submitit_folder | quote }}
job="$LSB_JOBID"
if [ "${LSB_JOBINDEX:-0}" != 0 ]; then
    job="${job}_$LSB_JOBINDEX"
    export HPCDIST_JOB_PLACE="$LSB_JOBINDEX"
fi
exec >> "$logs/${job}_0_log.out" 2>&1

{{ setup }}

set -euo pipefail
{{ own_folders }}
cd {{ cwd | quote }}
export {{ settings }}
# Libraries read these when they are loaded. Variables that are already set keep their values.
export {{ environment }}
# The command after -- is started on every host of the job (LSB_MCPU_HOSTS), one agent, which forks the ranks:
# directly on the first one, by the launcher on the others, with this directory and environment written into what it
# starts. LSF gives its signals to the first one; its exit code is the job's.
exec {{ python | quote }} -u -c '
import sys
sys.path[:] = [folder for folder in sys.path if folder]
from hpcdist.schedulers.hosts import main
main()
' --scheduler lsf --logs "$logs" --job "$job" --nodes {{ num_nodes }} --launcher {{ launcher | quote }} -- \
{{ start_agent }} "$logs"
