#!/bin/bash
# hpcdist: {{ job_comment }}
#PBS {{ directives }}

# When the job began: its time limit counts from then.
printf -v HPCDIST_JOB_BEGIN '%(%s)T' -1
export HPCDIST_JOB_BEGIN
# PBS sets it to the number of CPUs of the node.
unset OMP_NUM_THREADS
# The environment of the submission, from a file that only the user can have written: what PBS is given, all users can see.
if ! { cd -P -- {{ submitit_folder | quote }} && [ -O . ] && [ -O environment.sh ] && [ ! -L environment.sh ] && [ -z "$(find . environment.sh -maxdepth 0 -perm /022)" ]; }; then
    echo "error: environment.sh is missing, belongs to another user, or can be written by others: nothing of it was run" >&2
    exit 1
fi
. ./environment.sh; cd "$OLDPWD"

# PBS copies a job's output when the job has ended. This file can be read at once.
logs={{ submitit_folder | quote }}
job="${PBS_JOBID%%.*}"
exec >> "$logs/${job}_0_log.out" 2>&1
{{ setup }}

set -euo pipefail
{{ own_folders }}
cd {{ cwd | quote }}
export {{ settings }}
# Libraries read these when they are loaded. Variables that are already set keep their values.
export {{ environment }}
# The command after -- is started on every host of the job (PBS_NODEFILE), one agent, which forks the ranks:
# directly on the first one, by the launcher on the others, with this directory and environment written into what it starts.
# The first one's exit code is the job's.
# PBS's programs are not in the PATH of every job.
programs="$(sed -n 's/^PBS_EXEC=//p' /etc/pbs.conf 2> /dev/null || true)"
export PATH="$PATH:${programs:-/opt/pbs}/bin"
exec {{ python | quote }} -u -c '
import sys
sys.path[:] = [folder for folder in sys.path if folder]
from hpcdist.schedulers.hosts import main
main()
' --scheduler pbs --logs "$logs" --job "$job" --nodes {{ num_nodes }} --launcher 'pbs_tmrsh {host} {command}' -- \
{{ start_agent }} "$logs"
