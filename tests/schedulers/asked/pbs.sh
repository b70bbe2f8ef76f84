#!/bin/bash
# hpcdist: train
#PBS -N RUN
#PBS -l select=1:ncpus=12:mem=30995mb:ngpus=2
#PBS -l walltime=24:00:00
#PBS -r y
#PBS -j oe
#PBS -o '/scratch/ann/my runs/RUN/submitit/0_report.out'
#PBS -m ae
#PBS -M ann@example.org
#PBS -l software=x
#PBS -W umask=022

# When the job began: its time limit counts from then.
printf -v HPCDIST_JOB_BEGIN '%(%s)T' -1
export HPCDIST_JOB_BEGIN
# PBS sets it to the number of CPUs of the node.
unset OMP_NUM_THREADS
# The environment of the submission, from a file that only the user can have written: what PBS is given, all users can see.
if ! { cd -P -- '/scratch/ann/my runs/RUN/submitit' && [ -O . ] && [ -O environment.sh ] && [ ! -L environment.sh ] && [ -z "$(find . environment.sh -maxdepth 0 -perm /022)" ]; }; then
    echo "error: environment.sh is missing, belongs to another user, or can be written by others: nothing of it was run" >&2
    exit 1
fi
. ./environment.sh; cd "$OLDPWD"

# PBS copies a job's output when the job has ended. This file can be read at once.
logs='/scratch/ann/my runs/RUN/submitit'
job="${PBS_JOBID%%.*}"
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
# The command after -- is started on every host of the job (PBS_NODEFILE), one agent, which forks the ranks:
# directly on the first one, by the launcher on the others, with this directory and environment written into what it starts.
# The first one's exit code is the job's.
# PBS's programs are not in the PATH of every job.
programs="$(sed -n 's/^PBS_EXEC=//p' /etc/pbs.conf 2> /dev/null || true)"
export PATH="$PATH:${programs:-/opt/pbs}/bin"
exec '/opt/my venv/bin/python' -u -c '
import sys
sys.path[:] = [folder for folder in sys.path if folder]
from hpcdist.schedulers.hosts import main
main()
' --scheduler pbs --logs "$logs" --job "$job" --nodes 1 --launcher 'pbs_tmrsh {host} {command}' -- \
    '/opt/my venv/bin/python' -u -c '
import sys
sys.path[:] = [folder for folder in sys.path if folder]
from hpcdist.entry import main
main()
' "$logs"
