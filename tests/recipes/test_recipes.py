"""The recipes: what they start really runs here, and what needs a cluster is checked as far as one machine can."""

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from oarlock.cli import train
from oarlock.train.config import load_config
from tiny_run import environment, finish, recorded, wait_for_step, write_config

ROOT = Path(__file__).parents[2]
SLURM, KUBERNETES = ROOT / "recipes" / "slurm.sh", ROOT / "recipes" / "pytorchjob.yaml"

SRUN = """#!{python}
import os, signal, subprocess, sys
words = list(sys.argv[1:])
while words[0].startswith("--"):
    words.pop(0)
places = ({{"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)}} for i in range(int(os.environ["SLURM_NTASKS"])))
tasks = [subprocess.Popen(words, env=os.environ | place) for place in places]
signal.signal(signal.SIGUSR1, lambda *_: [task.send_signal(signal.SIGUSR1) for task in tasks])
open("srun.pid", "w").write(str(os.getpid()))
sys.exit(max(abs(task.wait()) for task in tasks))
"""
SCONTROL = """#!/bin/bash
if [ "$1" = show ]; then printf '127.0.0.1\\nnode-2\\n'; else echo "$@" >> scontrol.log; fi
"""


@pytest.fixture
def cluster(tmp_path: Path) -> dict[str, str]:
    """The environment of a Slurm job of two tasks, with a `srun` that starts them here."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("srun", SRUN.format(python=sys.executable)), ("scontrol", SCONTROL)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node-[1-2]", "SLURM_NTASKS": "2", "SLURM_CPUS_PER_TASK": "1"}
    return (
        environment()
        | job
        | {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHON": sys.executable,
            "MASTER_PORT": str(port),
        }
    )


def submit(config: Path, cluster: dict[str, str], *options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        ["bash", str(SLURM), config.name, config.stem, *options],
        cwd=config.parent,
        env=cluster,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_slurm_saves_before_the_time_limit_and_queues_itself_until_it_has_finished(
    tmp_path: Path, cluster: dict[str, str]
) -> None:
    config = write_config(tmp_path)
    run, requeued = config.with_suffix(""), tmp_path / "scontrol.log"
    process = submit(config, cluster, "--train.steps", "100000", "--checkpoint.every", "0", "--train.eval_every", "0")
    wait_for_step(process, run, 3)
    os.kill(int((tmp_path / "srun.pid").read_text()), signal.SIGUSR1)
    status, output = finish(process)
    assert status == 0, output
    stopped = json.loads((run / "status.json").read_text())
    assert stopped["stopped_by"] == "SIGUSR1"
    assert requeued.read_text() == "requeue 7\n"
    requeued.unlink()
    last = stopped["step"] + 2
    status, output = finish(submit(config, cluster, "--train.steps", str(last)))
    assert status == 0, output
    steps = [r for r in recorded(run) if r["kind"] == "train"]
    assert [r["step"] for r in steps] == list(range(1, last + 1))
    assert steps[-1]["tokens"] == last * 2 * 2 * 64  # two ranks of two sequences of 64
    assert not requeued.exists(), "a finished run is not queued again"


def test_slurm_explains_its_arguments() -> None:
    done = subprocess.run(["bash", str(SLURM), "configs/shakespeare.toml"], capture_output=True, text=True, timeout=20)
    assert done.returncode == 1
    assert "usage: sbatch recipes/slurm.sh CONFIG.toml RUN_FOLDER" in done.stderr


def replica(name: str) -> dict[str, Any]:
    job = yaml.safe_load(KUBERNETES.read_text(encoding="utf-8"))
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    return job["spec"]["pytorchReplicaSpecs"][name]


@pytest.mark.parametrize("name", ["Master", "Worker"])
def test_kubernetes_starts_a_command_that_oarlock_understands(name: str) -> None:
    pod = replica(name)["template"]["spec"]
    (container,) = pod["containers"]
    words = container["command"] + container["args"]
    assert words[:4] == ["torchrun", "-m", "oarlock", "train"]
    parser = argparse.ArgumentParser()
    train.add_parser(parser.add_subparsers())
    parsed, overrides = parser.parse_known_args(words[3:])
    assert parsed.resume == "auto"
    config = load_config(ROOT / parsed.config, overrides)
    (volume,) = (mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "runs")
    assert Path(config.train.out).is_relative_to(volume)
    assert Path(config.data.cache).is_relative_to(volume)
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    grace = {e["name"]: e["value"] for e in container["env"]}["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]
    assert int(grace) < pod["terminationGracePeriodSeconds"]


def test_torchrun_as_documented(tmp_path: Path) -> None:
    (line,) = re.findall(r"^torchrun (.*)$", (ROOT / "docs" / "training.md").read_text(encoding="utf-8"), re.MULTILINE)
    config = write_config(tmp_path, "my")
    command = [sys.executable, "-m", "torch.distributed.run", *line.split(), "--train.steps", "2"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert recorded(config.with_suffix(""))[-1]["tokens"] == 2 * 2 * 2 * 64
