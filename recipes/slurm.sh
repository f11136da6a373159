#!/bin/bash
# Oarlock on Slurm: one torchrun per node. `sbatch recipes/slurm.sh configs/shakespeare.toml`
# Slurm sends SIGUSR1 two minutes before the time limit: the run saves, leaves, and the job queues itself again.
#SBATCH --job-name=oarlock
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --output=runs/slurm-%j.log
set -euo pipefail
config=${1:?usage: sbatch recipes/slurm.sh CONFIG.toml [--section.key value ...]}
shift

head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export OMP_WAIT_POLICY=passive

# --kill-on-bad-exit: one failed node ends the step on all. torchrun hands signals on to its workers.
srun --kill-on-bad-exit=1 torchrun \
  --nnodes="$SLURM_NNODES" --nproc-per-node="${SLURM_GPUS_ON_NODE:-1}" \
  --rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d --rdzv-endpoint="$head_node:29500" \
  -m oarlock train "$config" --resume auto "$@"

if ! grep -qs '"finished": true' "${OARLOCK_RUN:-runs/default}/status.json"; then
  scontrol requeue "$SLURM_JOB_ID"
fi
