"""Load with PaddlePaddle what Oarlock wrote, and compare every bit. Run in an environment that has both libraries:

    python load_back.py RECORDED WRITTEN

RECORDED is a directory of record.py. WRITTEN has, for a name X of expected/, the folder X that `oarlock convert --to
paddle` made, and files X.pdparams or X.pdopt of save_state_file.
"""

import sys
from pathlib import Path

import numpy as np
import paddle
import paddle.distributed as dist
import record
from paddle.distributed.flex_checkpoint.dcp.sharded_weight import ShardedWeight
from safetensors.paddle import load_file


def bits(tensor: paddle.Tensor) -> bytes:
    return tensor.contiguous().numpy().tobytes()


def assert_same(found: dict[str, paddle.Tensor], expected: dict[str, paddle.Tensor], what: object) -> None:
    assert found.keys() == expected.keys(), (what, found.keys() ^ expected.keys())
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), (what, name)
        assert bits(found[name]) == bits(tensor), (what, name)
    print(f"{what}: {len(expected)} tensors, the same bits")


def check_folders(expected: Path, written: Path) -> None:
    """Every folder: as safetensors files, and as a FlexCheckpoint into tensors that exist, all or rank 1 of 2's."""
    for path in sorted(expected.glob("*.safetensors")):
        if path.stem == "empty":
            continue  # Paddle cannot load safetensors without elements, not even its own
        folder = written / path.stem
        held = load_file(path)
        found = {}
        for file in folder.glob("*.safetensors"):
            found |= paddle.load(str(file), safetensors=True)
        assert_same(found, held, f"{folder.name} by paddle.load")
        into = {name: paddle.empty(tensor.shape, dtype=tensor.dtype) for name, tensor in held.items()}
        dist.load_state_dict(into, str(folder), safetensors=True)
        assert_same(into, held, f"{folder.name} by load_state_dict")


def check_aoa(expected: Path, written: Path) -> None:
    """A folder through a program in Paddle's own AOA."""
    weight = load_file(expected / "model.safetensors")["up.weight"]
    into = ShardedWeight("up", paddle.empty([5, 6]), (5, 6), (5, 6), (0, 0))
    statements = {"aoa_statements": ["up.weight^T -> up"]}
    dist.load_state_dict({"up": into}, str(written / "model"), safetensors=True, aoa_config=statements)
    assert_same({"up": into.local_tensor}, {"up": weight.T}, "model by AOA")


def check_training(recorded: Path, written: Path) -> None:
    """A model and an optimizer that come back train on as those that never left."""
    model, optimizer, schedule = record.trained()
    steps = [record.train_step(model, optimizer, step) for step in range(3, 6)]
    again = {}
    for kind in ("files", "flex"):
        paddle.seed(7)
        again = record.Model()
        rate = paddle.optimizer.lr.CosineAnnealingDecay(1e-2, 10)
        adamw = paddle.optimizer.AdamW(rate, parameters=again.parameters(), weight_decay=0.1)
        if kind == "files":
            missing, unexpected = again.set_state_dict(paddle.load(str(written / "model.pdparams")))
            assert not missing, missing
            assert not unexpected, unexpected
            state = paddle.load(str(written / "optimizer.pdopt"))
            assert state["LR_Scheduler"] == paddle.load(str(recorded / "optimizer4.pdopt"))["LR_Scheduler"]
            names = dict(zip([p.name for p in model.parameters()], [p.name for p in again.parameters()], strict=True))
            for old, new in sorted(
                names.items(), key=lambda pair: -len(pair[0])
            ):  # a new process would have the old ones
                state = {name.replace(old + "_", new + "_"): value for name, value in state.items()}
            adamw.set_state_dict(state)
        else:
            record.train_step(again, adamw, 0)  # so that the optimizer has states to fill
            rate.set_state_dict(schedule.state_dict())
            weights = again.sharded_state_dict()
            dist.load_state_dict(
                {**weights, **adamw.sharded_state_dict(weights)}, str(written / "flex"), safetensors=True
            )
        found = [record.train_step(again, adamw, step) for step in range(3, 6)]
        assert found == steps, (kind, found, steps)
        for (name, trained), tensor in zip(model.state_dict().items(), again.state_dict().values(), strict=True):
            assert bits(trained) == bits(tensor), (kind, name)
        print(f"{kind}: three more steps, the same bits")


def check_nested(recorded: Path, written: Path) -> None:
    """Dicts and lists with other values, as they were."""

    def same(a: object, b: object) -> bool:
        if isinstance(a, np.ndarray):  # here there are only tensors
            a = paddle.to_tensor(a)
        if isinstance(a, paddle.Tensor):
            return (a.dtype, a.shape) == (b.dtype, b.shape) and bits(a) == bits(b)
        if isinstance(a, dict):
            return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
        if isinstance(a, list | tuple):
            return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
        return a == b and (type(a) is type(b) or isinstance(a, np.floating))

    for name in ("everything2.pdparams", "everything4.pdparams", "half.pdopt", "half.pdparams"):
        assert same(paddle.load(str(recorded / name)), paddle.load(str(written / name))), name
        print(f"{name}: the same values")


if __name__ == "__main__":
    recorded, written = Path(sys.argv[1]), Path(sys.argv[2])
    check_folders(recorded / "expected", written)
    check_aoa(recorded / "expected", written)
    check_training(recorded, written)
    check_nested(recorded, written)
