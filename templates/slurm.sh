#!/bin/bash
# hpcdist: {{ job_comment }}
#SBATCH {{ directives }}
{{ setup }}

set -euo pipefail
# The agents answer these signals. Without a trap, bash would end before they do, and the job with it.
trap : TERM USR2
{{ own_folders }}
cd {{ cwd | quote }}
export {{ settings }}
# Libraries read these when they are loaded. Variables that are already set keep their values.
export {{ environment }}
export HPCDIST_JOB_PLACE="${SLURM_ARRAY_TASK_ID:-}"
# One agent per node, which forks the node's ranks. An agent that is killed must not end the others at once:
# they say why the run ended.
begin="$(stat -L -c %s /dev/stderr 2> /dev/null || echo 0)"
# The agent of node 0 reads in this log of which nodes srun says that it could start nothing there.
HPCDIST_SRUN_LOG="$begin:$(readlink -f /dev/stderr || true)"
export HPCDIST_SRUN_LOG
ended=0
srun --job-name={{ name | quote }} --nodes={{ num_nodes }} --ntasks={{ num_nodes }} --ntasks-per-node=1 \
    --cpus-per-task={{ cpus_per_node }} --export=ALL --kill-on-bad-exit=0 {{ losses }} --unbuffered \
    --output={{ output | quote }} --open-mode=append \
{{ start_agent }} {{ submitit_folder | quote }} || ended=$?
if [ "$ended" != 0 ]; then
    # srun has lost agents, was killed, or could start none: the run has its end all the same, or gets it.
    code=$ended ended=0
    {{ python | quote }} -u -c '
import sys
sys.path[:] = [folder for folder in sys.path if folder]
from hpcdist.agent.launcher_end import main
main()
' {{ submitit_folder | quote }} "$code" "$begin" || ended=$?
fi
exit "$ended"

