#!/bin/bash
# hpcdist: train
#SBATCH --job-name=RUN
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=12
#SBATCH --gres=gpu:v100:2
#SBATCH --mem=30995M
#SBATCH --time=1-00:00:00
#SBATCH --signal=USR2@120
#SBATCH --requeue
#SBATCH --output=/scratch/ann/runs/RUN/submitit/%j_0_log.out
#SBATCH --open-mode=append

set -euo pipefail
# The agents answer these signals. Without a trap, bash would end before they do, and the job with it.
trap : TERM USR2
cd /home/ann/project
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
srun --job-name=RUN --nodes=2 --ntasks=2 --ntasks-per-node=1 \
    --cpus-per-task=12 --export=ALL --kill-on-bad-exit=0 --wait=60 --unbuffered \
    --output=/scratch/ann/runs/RUN/submitit/%j_%t_log.out --open-mode=append \
    /opt/venv/bin/python -u -c '
import sys
sys.path[:] = [folder for folder in sys.path if folder]
from hpcdist.entry import main
main()
' /scratch/ann/runs/RUN/submitit || ended=$?
if [ "$ended" != 0 ]; then
    # No agent has said how the run ended: srun was killed, or could start nothing.
    /opt/venv/bin/python -u -c '
import sys
sys.path[:] = [folder for folder in sys.path if folder]
from hpcdist.agent.launcher_end import main
main()
' /scratch/ann/runs/RUN/submitit "$ended" "$begin" || true
fi
exit "$ended"

