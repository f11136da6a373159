#!/bin/bash
# Oarlock on Slurm: one process per GPU. `sbatch recipes/slurm.sh configs/shakespeare.toml runs/shakespeare`
# Two minutes before the time limit Slurm sends SIGUSR1 to every process: the run saves and leaves, and the job queues
# itself again until the run has finished.
#SBATCH --job-name=oarlock
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --output=%x-%j.log
set -euo pipefail
usage="usage: sbatch recipes/slurm.sh CONFIG.toml RUN_FOLDER [--section.key value ...]"
config=${1:?$usage}
run=${2:?$usage}
shift 2

MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
export MASTER_ADDR MASTER_PORT=${MASTER_PORT:-29500} WORLD_SIZE=$SLURM_NTASKS OMP_WAIT_POLICY=passive

# exec: the signal reaches Python itself, once. --kill-on-bad-exit: one failed process ends the others on all nodes.
srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
  bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec "${PYTHON:-python}" -m oarlock train "$@"' \
  train "$config" --resume auto --train.out "$run" "$@"

if ! grep -qs '"finished": true' "$run/status.json"; then
  scontrol requeue "$SLURM_JOB_ID"
fi
