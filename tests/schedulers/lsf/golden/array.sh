#!/bin/bash
# hpcdist: train
#BSUB -J "RUN[1-20]%4"
#BSUB -n 1
#BSUB -r
#BSUB -o "/scratch/ann/my runs/RUN/submitit/%J_%I_lsf.out"
#BSUB -w "done(11) && done(12[3]) && ended(14)"

# LSF copies a job's output when the job has ended. This file can be read at once.
logs='/scratch/ann/my runs/RUN/submitit'
job="$LSB_JOBID"
if [ "${LSB_JOBINDEX:-0}" != 0 ]; then
    job="${job}_$LSB_JOBINDEX"
    export HPCDIST_JOB_PLACE="$LSB_JOBINDEX"
fi
exec >> "$logs/${job}_0_log.out" 2>&1


set -euo pipefail
cd /home/ann/project
export HPCDIST_SUBMIT_DIR=/home/ann/project
# Libraries read these when they are loaded. Variables that are already set keep their values.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
# The command after -- is started on every host of the job (LSB_MCPU_HOSTS), one agent, which forks the ranks:
# directly on the first one, by the launcher on the others, with this directory and environment written into what it
# starts. LSF gives its signals to the first one; its exit code is the job's.
exec '/opt/my venv/bin/python' -u -c '
import sys
sys.path[:] = [folder for folder in sys.path if folder]
from hpcdist.schedulers.lsf.hosts import main
main()
' --logs "$logs" --job "$job" --nodes 1 --launcher 'blaunch -z {host} {command}' -- \
    '/opt/my venv/bin/python' -u -c '
import sys
sys.path[:] = [folder for folder in sys.path if folder]
from hpcdist.entry import main
main()
' "$logs"
