#!/bin/bash
# hpcdist: train
#BSUB -J RUN
#BSUB -n 12
#BSUB -R "span[hosts=1] rusage[mem=2709MB]"
#BSUB -gpu "num=2:mode=exclusive_process"
#BSUB -W 24:00
#BSUB -r
#BSUB -o "/scratch/ann/my runs/RUN/submitit/%J_report.out"
#BSUB -N
#BSUB -u "ann@example.org"
#BSUB -x

# LSF copies a job's output when the job has ended. This file can be read at once.
logs='/scratch/ann/my runs/RUN/submitit'
job="$LSB_JOBID"
if [ "${LSB_JOBINDEX:-0}" != 0 ]; then
    job="${job}_$LSB_JOBINDEX"
    export HPCDIST_JOB_PLACE="$LSB_JOBINDEX"
fi
exec >> "$logs/${job}_0_log.out" 2>&1


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
cd /home/ann/project
export HF_HOME='/scratch/ann/it'"'"'s here'
export NCCL_DEBUG=WARN
export HPCDIST_SUBMIT_DIR=/home/ann/project
# Libraries read these when they are loaded. Variables that are already set keep their values.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-6}"
# The command after -- is started on every host of the job (LSB_MCPU_HOSTS), one agent, which forks the ranks:
# directly on the first one, by the launcher on the others, with this directory and environment written into what it
# starts. LSF gives its signals to the first one; its exit code is the job's.
exec '/opt/my venv/bin/python' -u -c '
import sys
sys.path[:] = [folder for folder in sys.path if folder]
from hpcdist.schedulers.hosts import main
main()
' --scheduler lsf --logs "$logs" --job "$job" --nodes 1 --launcher 'blaunch -z {host} {command}' -- \
    '/opt/my venv/bin/python' -u -c '
import sys
sys.path[:] = [folder for folder in sys.path if folder]
from hpcdist.entry import main
main()
' "$logs"
