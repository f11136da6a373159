"""The names that seven decoders of PaddleFormers use, 67 of paddle and 42 attributes of tensors, are here and work."""

import torch

import oarlock.paddle as paddle
from oarlock.paddle.check import ABSENT, resolve

NAMES = """
Tensor amp.auto_cast arange autograd.PyLayer bool cast cat concat create_parameter distributed.ColWiseParallel
distributed.RowWiseParallel distributed.communication.group.Group.__deepcopy__
distributed.communication.group.Group.to_json distributed.fleet.get_hybrid_communicate_group
distributed.fleet.layers.mpu.random.get_rng_state_tracker distributed.fleet.meta_parallel.ParallelCrossEntropy
distributed.fleet.recompute.recompute.recompute distributed.fleet.utils.recompute
distributed.fleet.utils.sequence_parallel_utils.GatherOp.apply
distributed.fleet.utils.sequence_parallel_utils.ScatterOp.apply
distributed.fleet.utils.sequence_parallel_utils.mark_as_sequence_parallel_parameter
distributed.flex_checkpoint.dcp.sharded_weight.build_sharded_state_dict distributed.get_rank distributed.get_world_size
eq finfo float32 full get_default_dtype incubate.nn.functional.fused_rotary_position_embedding int32 int64
is_grad_enabled jit.not_to_static mean nn.BCEWithLogitsLoss nn.CrossEntropyLoss nn.Dropout nn.Layer nn.LayerList
nn.Linear nn.MSELoss nn.functional.dropout nn.functional.linear nn.functional.normalize nn.functional.one_hot
nn.functional.softmax nn.functional.swiglu nn.initializer.Constant no_grad numel ones ones_like put_along_axis randn
reshape reshape_ scatter split stack static.InputSpec sum topk view where zeros zeros_like
""".split()  # noqa: SIM905 - as they are listed
ATTRIBUTES = """
apply argmax astype bool cast chunk clone contiguous cos detach dtype expand flatten float gather gather_nd index_add_
index_select int log masked_fill min name ndim norm numel permute repeat_interleave reshape shape sigmoid sin sqrt
squeeze stop_gradient sum tile to topk transpose unsqueeze view
""".split()  # noqa: SIM905 - as they are listed


def test_every_name_is_here() -> None:
    assert (len(NAMES), len(ATTRIBUTES)) == (67, 42)
    assert [name for name in NAMES if resolve(f"paddle.{name}") is ABSENT] == []


def test_every_attribute_of_tensors_is_here_and_works() -> None:
    paddle.patch_tensor()
    try:
        x = paddle.arange(1, 13, dtype="float32").reshape([3, 4])
        assert [name for name in ATTRIBUTES if not hasattr(x, name)] == []
        index = paddle.to_tensor([2, 0])
        results = {
            "apply": x.apply(lambda t: t + 1),
            "argmax": x.argmax(axis=-1),
            "astype": x.astype("float64"),
            "bool": x.bool(),
            "cast": x.cast(paddle.int32),
            "chunk": x.chunk(2, axis=-1)[1],
            "expand": x.unsqueeze(0).expand([2, 3, 4]),
            "flatten": x.flatten(),
            "gather": paddle.gather(x, index),
            "gather_nd": x.gather_nd(paddle.to_tensor([[2, 1]])),
            "index_add_": x.clone().index_add_(index, 0, paddle.ones([2, 4])),
            "index_select": x.index_select(index, axis=0),
            "masked_fill": x.masked_fill(x > 6, 0.0),
            "norm": x.norm(p=2, axis=-1),
            "permute": x.permute([1, 0]),
            "repeat_interleave": x.repeat_interleave(2, axis=0),
            "squeeze": x.unsqueeze(0).squeeze(0),
            "sum": x.sum(axis=0, keepdim=True),
            "tile": x.tile([2, 1]),
            "to": x.to("bfloat16"),
            "topk": x.topk(2, axis=-1)[0],
            "transpose": x.transpose([1, 0]),
            "view": x.view([4, 3]),
        }
        shapes = {name: list(value.shape) for name, value in results.items()}
        assert shapes == {
            "apply": [3, 4], "argmax": [3], "astype": [3, 4], "bool": [3, 4], "cast": [3, 4], "chunk": [3, 2],
            "expand": [2, 3, 4], "flatten": [12], "gather": [2, 4], "gather_nd": [1], "index_add_": [3, 4],
            "index_select": [2, 4], "masked_fill": [3, 4], "norm": [3], "permute": [4, 3], "repeat_interleave": [6, 4],
            "squeeze": [3, 4], "sum": [1, 4], "tile": [6, 4], "to": [3, 4], "topk": [3, 2], "transpose": [4, 3],
            "view": [4, 3],
        }  # fmt: skip
        assert results["gather"][0].tolist() == [9, 10, 11, 12]
        assert results["gather_nd"].tolist() == [10]
        assert results["index_add_"][0].tolist() == [2, 3, 4, 5]
        assert results["to"].dtype == torch.bfloat16
        assert x.stop_gradient
        assert paddle.nn.Linear(2, 2).weight.name.endswith(".w_0")
    finally:
        paddle.unpatch_tensor()
