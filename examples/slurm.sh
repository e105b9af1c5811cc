#!/bin/bash
# A run on a SLURM cluster that outlives its time limit and preemption: sbatch examples/slurm.sh GRAPH RUN [OPTIONS]
#
# Two minutes before the limit SLURM sends SIGUSR1 to every rank (with preemption SIGTERM). They stop after the same
# step, save, and end with 75; then this job is queued again, and goes on where it was. GRAPH and RUN lie on a disk that
# all machines share. A job that is queued again because a machine failed goes on from its last checkpoint.
#SBATCH --job-name=timeloom
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --time=04:00:00
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append

if [ $# -lt 2 ]; then
    echo "usage: sbatch slurm.sh GRAPH RUN [options of timeloom train, such as --system psg]" >&2
    exit 2
fi
graph=$1 run=$2
shift 2

# SLURM may send signals to this script, too: it waits for what the ranks make of theirs.
trap : TERM USR1

if [ -f "$run/config.toml" ]; then
    set -- --resume "$run"
else
    set -- "$graph" --out "$run" "$@"
fi

# A rank that has stopped ends before the one that still saves: that must not be killed for it.
srun --kill-on-bad-exit=0 timeloom train "$@" --quiet
code=$?

if [ $code -eq 75 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $code
