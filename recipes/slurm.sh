#!/bin/bash
# Oarlock on Slurm, one torchrun per node:
#   sbatch recipes/slurm.sh configs/shakespeare.toml runs/on-slurm [--section.key value ...]
# Two minutes before the time limit Slurm sends SIGTERM: the run saves and leaves, and the job queues itself again.
#SBATCH --job-name=oarlock
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --output=slurm-%j.log
set -euo pipefail
config=${1:?usage: sbatch recipes/slurm.sh CONFIG.toml RUN_FOLDER [--section.key value ...]}
run=${2:?usage: sbatch recipes/slurm.sh CONFIG.toml RUN_FOLDER [--section.key value ...]}
shift 2

head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export OMP_WAIT_POLICY=passive

status=0
started=$(mktemp)
srun --kill-on-bad-exit=0 torchrun \
  --nnodes="$SLURM_NNODES" --nproc-per-node="${SLURM_GPUS_ON_NODE:-1}" \
  --rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d --rdzv-endpoint="$head_node:29500" \
  -m oarlock train "$config" --resume auto --train.out "$run" "$@" || status=$?

# Only a run that a signal ended just now goes on; one that failed would fail again.
if [ "$run/status.json" -nt "$started" ] && grep -qs '"stopped_by": "[^"]' "$run/status.json"; then
  scontrol requeue "$SLURM_JOB_ID"
  exit 0
fi
exit "$status"
