"""Write files with PaddlePaddle, and what they hold. Run in an environment that has Paddle and safetensors:

    python record.py DIRECTORY

tests/checkpoint/paddle/recorded is the result with paddlepaddle 3.3.1 and numpy 2 on a CPU. What the files hold is in
expected/, written by safetensors' own code, under the names that Oarlock gives.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.distributed.flex_checkpoint.dcp.sharded_weight import ShardedWeight
from safetensors.paddle import save_file

DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("int64", "int32", "int16", "int8", "uint8", "bool"),
)


def values(*shape: int, dtype: str = "float32", seed: int = 0) -> paddle.Tensor:
    """Any values; many bits are set in all of them."""
    paddle.seed(seed)
    return (paddle.randn(shape) * 3).astype(dtype)


def expect(out: Path, name: str, tensors: dict[str, paddle.Tensor]) -> None:
    """What a file or directory holds."""
    (out / "expected").mkdir(exist_ok=True)
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, str(out / f"expected/{name}.safetensors"))


class Model(paddle.nn.Layer):
    """Linear layers ([in, out] in Paddle), a norm, a buffer, and a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = paddle.nn.Embedding(7, 6)
        self.up = paddle.nn.Linear(6, 5)
        self.down = paddle.nn.Linear(5, 6, bias_attr=False)
        self.norm = paddle.nn.LayerNorm(6)
        self.head = paddle.nn.Linear(6, 7, bias_attr=False)
        self.register_buffer("steps", paddle.to_tensor([3], dtype="int64"))

    def forward(self, ids: paddle.Tensor) -> paddle.Tensor:
        return self.head(self.norm(self.down(paddle.nn.functional.gelu(self.up(self.embedding(ids))))))


def trained() -> tuple[Model, paddle.optimizer.AdamW, paddle.optimizer.lr.LRScheduler]:
    """A model after three steps of AdamW."""
    paddle.seed(1)
    model = Model()
    schedule = paddle.optimizer.lr.CosineAnnealingDecay(1e-2, 10)
    optimizer = paddle.optimizer.AdamW(schedule, parameters=model.parameters(), weight_decay=0.1)
    for step in range(3):
        train_step(model, optimizer, step)
        schedule.step()
    return model, optimizer, schedule


def train_step(model: Model, optimizer: paddle.optimizer.AdamW, step: int) -> float:
    ids = paddle.to_tensor(np.arange(8).reshape(2, 4) * (step + 2) % 7)
    loss = paddle.nn.functional.cross_entropy(model(ids), (ids + 1) % 7)
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    return float(loss)


def what_follows(out: Path) -> None:
    """The losses of the next three steps, and their learning rate."""
    model, optimizer, _ = trained()
    rate = optimizer.get_lr()
    losses = [train_step(model, optimizer, step) for step in range(3, 6)]
    (out / "what_follows.json").write_text(json.dumps({"rate": rate, "losses": losses}))


def state_files(out: Path) -> None:
    """.pdparams and .pdopt of all protocols, with master weights, of all dtypes, nested."""
    model, optimizer, _ = trained()
    state = optimizer.state_dict()
    expect(out, "model", model.state_dict())
    expect(out, "optimizer", {name: tensor for name, tensor in state.items() if name != "LR_Scheduler"})
    for protocol in (2, 3, 4):
        paddle.save(model.state_dict(), str(out / f"model{protocol}.pdparams"), protocol=protocol)
        paddle.save(state, str(out / f"optimizer{protocol}.pdopt"), protocol=protocol)

    half = Model().to(dtype="bfloat16")  # AdamW has no kernel for it on a CPU, so the states are filled by hand
    optimizer = paddle.optimizer.AdamW(1e-3, parameters=half.parameters(), multi_precision=True)
    optimizer._create_accumulators(paddle.static.default_main_program().global_block(), half.parameters())
    state = optimizer.state_dict()
    flat = {name: tensor for name, tensor in state.items() if name not in ("LR_Scheduler", "master_weights")}
    for seed, tensor in enumerate(flat.values()):
        tensor.set_value(values(*tensor.shape, seed=seed))
    flat |= {f"master_weights.{name}": tensor for name, tensor in state["master_weights"].items()}
    paddle.save(half.state_dict(), str(out / "half.pdparams"))
    paddle.save(state, str(out / "half.pdopt"))
    expect(out, "half", half.state_dict())
    expect(out, "half-optimizer", flat)


def everything(out: Path) -> None:
    """All dtypes and containers. paddle.save writes 8-bit floats as int8."""
    tensors = {dtype: values(2, 3, dtype=dtype) for dtype in DTYPES}
    state = {
        **tensors,
        "nested": {"list": [values(2), 3, "text", None, 1.5, True], "tuple": (values(),)},
        "numpy": np.arange(3),
        "number": np.float32(0.5),
        "columns": values(4, 3).T,
        "twice": [tensors["float32"], tensors["float32"]],
        "ü": values(2),
    }
    held = {name: tensor.view("int8") if "float8" in name else tensor for name, tensor in tensors.items()}
    held |= {"nested.list.0": values(2), "nested.tuple.0": values(), "numpy": paddle.arange(3)}
    held |= {"columns": values(4, 3).T, "ü": values(2)}
    held |= {f"twice.{n}": tensors["float32"].clone() for n in range(2)}
    expect(out, "everything", held)
    expect(out, "empty", {"empty": paddle.zeros([0, 3])})
    for protocol in (2, 4):
        paddle.save(state, str(out / f"everything{protocol}.pdparams"), protocol=protocol)
        paddle.save({"empty": paddle.zeros([0, 3])}, str(out / f"empty{protocol}.pdparams"), protocol=protocol)
    paddle.save(values(3), str(out / "one.pdtensor"))
    expect(out, "one", {"tensor": values(3)})
    static = paddle.base.core.DenseTensor()
    static.set(values(2, 3).numpy(), paddle.CPUPlace())
    paddle.save([static], str(out / "static.pdtensor"))
    expect(out, "static", {"0": values(2, 3)})


def one_process(out: Path) -> None:
    """FlexCheckpoint of a model and its optimizer, of all dtypes, and of two saves in one directory."""
    model, optimizer, _ = trained()
    weights = model.sharded_state_dict()
    state = {**weights, **optimizer.sharded_state_dict(weights)}
    expect(out, "flex", {name: weight.local_tensor for name, weight in state.items()})
    dtypes = {dtype: values(2, 3, dtype=dtype) for dtype in DTYPES}
    expect(out, "flex-dtypes", {f"x.{name}": tensor for name, tensor in dtypes.items()})
    for form in ("distcp", "safetensors"):
        dist.save_state_dict(state, str(out / f"flex-{form}"), safetensors=form == "safetensors")
        dist.save_state_dict({"x": dtypes}, str(out / f"flex-dtypes-{form}"), safetensors=form == "safetensors")
    for number in (0, 10):
        dist.save_state_dict({"x": values(3, seed=number)}, str(out / "flex-numbers"), unique_id=number)
        expect(out, f"flex-number-{number}", {"x": values(3, seed=number)})


def two_ranks(out: Path) -> None:
    """Run by each of two ranks: rows, columns, copies, flat slices of a whole tensor and of a rank's columns."""
    dist.init_parallel_env()
    rank = dist.get_rank()
    rows, columns, flat, both = values(5, 4, seed=1), values(6, 4, seed=2), values(6, 4, seed=3), values(3, 8, seed=4)
    copied, last = values(3, dtype="bfloat16", seed=5), values(2, 2, dtype="int64", seed=6)
    start, stop = ((0, 3), (3, 5))[rank]
    first, end = ((0, 10), (10, 24))[rank]  # two slices of all elements
    corner, inner = (0, 4 * rank), ((0, 12), (0, 12))[rank]
    state = {
        "rows": ShardedWeight("rows", rows[start:stop], (stop - start, 4), (5, 4), (start, 0)),
        "columns": ShardedWeight(
            "columns", columns[:, 2 * rank : 2 * rank + 2].contiguous(), (6, 2), (6, 4), (0, 2 * rank)
        ),
        "copied": ShardedWeight("copied", copied, (3,), (3,), (0,)),
        "flat": ShardedWeight("flat", flat.flatten()[first:end], (6, 4), (6, 4), (0, 0), True, slice(first, end)),
        "both": ShardedWeight(
            "both", both[:, 4 * rank : 4 * rank + 4].flatten(), (3, 4), (3, 8), corner, True, slice(*inner)
        ),
    }
    if rank == 1:
        state["last"] = ShardedWeight("last", last, (2, 2), (2, 2), (0, 0))
    dist.save_state_dict(state, str(out / "ranks"))
    dist.save_state_dict(state, str(out / "ranks-safetensors"), safetensors=True)
    both_have = {"copied": state["copied"], "flat": ShardedWeight("flat", flat, (6, 4), (6, 4), (0, 0))}
    dist.save_state_dict(both_have, str(out / "ranks-copies"), save_replicas=True)
    if rank == 0:
        expect(
            out, "ranks", {"rows": rows, "columns": columns, "copied": copied, "flat": flat, "both": both, "last": last}
        )
        expect(out, "copies", {"copied": copied, "flat": flat})
    dist.barrier()


def launch_two_ranks(out: Path) -> None:
    """Two processes that talk over gloo on this machine."""
    ports = []
    for _ in range(3):
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            ports.append(server.getsockname()[1])
    ends = [f"127.0.0.1:{port}" for port in ports]
    shared = {"PADDLE_DISTRI_BACKEND": "gloo", "PADDLE_TRAINERS_NUM": "2", "PADDLE_MASTER": ends[2]}
    shared |= {"PADDLE_TRAINER_ENDPOINTS": ",".join(ends[:2]), "CUDA_VISIBLE_DEVICES": ""}
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(out), "rank"],
            env=os.environ | shared | {"PADDLE_TRAINER_ID": str(rank), "PADDLE_CURRENT_ENDPOINT": ends[rank]},
        )
        for rank in range(2)
    ]
    try:
        assert [process.wait(timeout=120) for process in ranks] == [0, 0]
    finally:
        for process in ranks:
            process.kill()


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    if sys.argv[2:] == ["rank"]:
        two_ranks(directory)
    else:
        directory.mkdir()
        what_follows(directory)
        state_files(directory)
        everything(directory)
        one_process(directory)
        launch_two_ranks(directory)
