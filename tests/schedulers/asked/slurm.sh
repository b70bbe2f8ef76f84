#!/bin/bash
# hpcdist: train
#SBATCH --job-name=RUN
#SBATCH --exclude='n[1-3]'
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=12
#SBATCH --gpus-per-node=2
#SBATCH --mem=30995M
#SBATCH --time=1-00:00:00
#SBATCH --signal=USR2@120
#SBATCH --requeue
#SBATCH --mail-type=END,FAIL
#SBATCH --mail-user=ann@example.org
#SBATCH --output='/scratch/ann/my runs/RUN/submitit/%j_0_log.out'
#SBATCH --open-mode=append

# From the cluster profile. A line that fails is reported, also in the verdict of a failed run. The lines after it still run.
hpcdist_failed() {
    local line="" # of the script: of a function such as module, the last command in it is told otherwise
    case "$0" in *bash) ;; *) line="$(sed -n "$2p" "$0")" ;; esac
    export HPCDIST_SETUP_FAILED="exit code $1: ${line:-$3}"
    echo "hpcdist: setup: $HPCDIST_SETUP_FAILED" >&2
}
trap 'case "${BASH_SOURCE[1]:-}" in "") hpcdist_failed "$?" "$LINENO" "$BASH_COMMAND" ;; esac' ERR
module purge
module load cuda/12.4
source ~/venv/bin/activate
trap - ERR

set -euo pipefail
# The agents answer these signals. Without a trap, bash would end before they do, and the job with it.
trap : TERM USR2
cd /home/ann/project
export HF_HOME='/scratch/ann/it'"'"'s here'
export NCCL_DEBUG=WARN
export HPCDIST_SUBMIT_DIR=/home/ann/project
# Libraries read these when they are loaded. Variables that are already set keep their values.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-6}"
export HPCDIST_JOB_PLACE="${SLURM_ARRAY_TASK_ID:-}"
# One agent per node, which forks the node's ranks. An agent that is killed must not end the others at once:
# they say why the run ended.
begin="$(stat -L -c %s /dev/stderr 2> /dev/null || echo 0)"
# The agent of node 0 reads in this log of which nodes srun says that it could start nothing there.
HPCDIST_SRUN_LOG="$begin:$(readlink -f /dev/stderr || true)"
export HPCDIST_SRUN_LOG
ended=0
srun --job-name=RUN --nodes=1 --ntasks=1 --ntasks-per-node=1 \
    --cpus-per-task=12 --export=ALL --kill-on-bad-exit=0 --wait=60 --unbuffered \
    --output='/scratch/ann/my runs/RUN/submitit/%j_%t_log.out' --open-mode=append \
    '/opt/my venv/bin/python' -u -c '
import sys
sys.path[:] = [folder for folder in sys.path if folder]
from hpcdist.entry import main
main()
' '/scratch/ann/my runs/RUN/submitit' || ended=$?
if [ "$ended" != 0 ]; then
    # srun has lost agents, was killed, or could start none: the run has its end all the same, or gets it.
    code=$ended ended=0
    '/opt/my venv/bin/python' -u -c '
import sys
sys.path[:] = [folder for folder in sys.path if folder]
from hpcdist.agent.launcher_end import main
main()
' '/scratch/ann/my runs/RUN/submitit' "$code" "$begin" || ended=$?
fi
exit "$ended"

