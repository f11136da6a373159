"""`patch_tensor()`: every name of Paddle's tensors works on torch's, and nothing that torch accepts changes."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.distributed.tensor
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

import oarlock.paddle as paddle
from oarlock.paddle.patch import tensor_names

PADDLE_ONLY = [name for name, lacking in tensor_names().items() if lacking]


@pytest.fixture(autouse=True)
def _patched() -> Iterator[None]:
    paddle.patch_tensor()
    yield
    paddle.unpatch_tensor()


def x() -> Tensor:
    return torch.arange(6.0).reshape(2, 3)


def test_all_names_of_paddles_tensors_exist() -> None:
    assert len(PADDLE_ONLY) == 136
    lacking = {"placements", "create_parameter"}
    assert {name for name in PADDLE_ONLY if not hasattr(x(), name)} <= lacking


def test_the_names_come_and_go() -> None:
    before = {name: getattr(Tensor, name, None) for name in tensor_names()}
    paddle.unpatch_tensor()
    assert not [name for name in PADDLE_ONLY if hasattr(Tensor, name)]
    assert "sum" not in Tensor.__dict__
    paddle.patch_tensor()
    assert before.keys() == {name: getattr(Tensor, name, None) for name in tensor_names()}.keys()
    assert paddle.patch_tensor() == sorted(paddle.patch_tensor()), "patching twice changes nothing"


@pytest.mark.parametrize(
    ("refused", "meant"),
    [
        (lambda x: x.transpose([1, 0]), lambda x: x.t()),
        (lambda x: x.split(3, axis=1)[2], lambda x: x[:, 2:]),
        (lambda x: x.flatten(start_axis=0), lambda x: x.flatten()),
        (lambda x: x.unsqueeze([0, 1]), lambda x: x[None, None]),
        (lambda x: x.cumsum(), lambda x: x.flatten().cumsum(0)),
        (lambda x: x.gather(torch.tensor([1])), lambda x: x[1:]),
        (lambda x: x.to("float64"), lambda x: x.double()),
        (lambda x: x.to("cpu", "int32"), lambda x: x.int()),
        (lambda x: x.int().mean(), lambda x: torch.tensor(2, dtype=torch.int32)),
        (lambda x: x.softmax(), lambda x: x.softmax(1)),
        (lambda x: x.reshape([0, -1, 1]), lambda x: x.reshape(2, 3, 1)),
        (lambda x: x.index_select(torch.tensor([1]), axis=1), lambda x: x[:, 1:2]),
        (lambda x: x.new_full([2], 3, dtype="int32"), lambda x: torch.tensor([3, 3], dtype=torch.int32)),
    ],
)
def test_a_call_that_torch_refuses_is_paddles(refused: object, meant: object) -> None:
    torch.testing.assert_close(refused(x()), meant(x()))


def test_a_call_that_torch_accepts_is_torchs() -> None:
    assert x().max(axis=1).indices.tolist() == [2, 2]
    assert [part.shape for part in x().split(2, dim=1)] == [(2, 2), (2, 1)]
    assert x().equal(x()) is True


def test_an_error_is_the_one_that_helps() -> None:
    with pytest.raises(RuntimeError, match="invalid for input of size 6"):
        x().reshape(4, 2)
    with pytest.raises(ValueError, match="into 2 equal parts"):
        x().split(2, axis=1)
    with pytest.raises(TypeError, match="sum"):
        x().sum(nonsense=1)


def test_values_as_arrays_with_a_gradient_and_in_bfloat16() -> None:
    assert np.array_equal(x().requires_grad_().numpy(), x().numpy())
    assert torch.tensor([1.0, 2.0]).bfloat16().numpy().tolist() == [16256, 16384]


def test_names_without_recorded_calls() -> None:
    assert x().block is None
    assert paddle.Tensor.broadcast_shapes([2, 1], [3]) == [2, 3]
    assert paddle.Tensor.create_tensor("int32").dtype == torch.int32
    made = x()
    assert made.get_tensor() is made
    made.set_tensor(torch.ones(2))
    assert made.tolist() == [1, 1]
    with pytest.raises(TypeError, match=r"set_vocab\(\) gives it one"):
        made.get_map_tensor()
    made.set_vocab({"a": 0})
    made.set_string_list(["a", "b"])
    assert made.get_map_tensor() == {"a": 0}
    sparse = torch.sparse_coo_tensor([[2, 0]], [1.0, 2.0], (3,), check_invariants=True)
    assert sparse.rows() == [0, 2]


def test_gradients_stop_or_flow() -> None:
    leaf = x()
    leaf.stop_gradient = False
    leaf.sum().backward()
    assert leaf.gradient().tolist() == [[1.0] * 3] * 2
    leaf.clear_grad()
    assert leaf.grad_.sum() == 0
    whole = torch.tensor([1, 2])
    whole.stop_gradient = False  # kept, though an integer has no gradient
    assert not whole.stop_gradient
    assert torch.nn.Parameter(x()).persistable


def test_a_backward_pass_runs_once() -> None:
    leaf, seen = x().requires_grad_(), []

    def hook(gradient: Tensor) -> None:
        seen.append(gradient)
        raise RuntimeError("of the hook")

    leaf.register_hook(hook)
    with pytest.raises(RuntimeError, match="of the hook"):
        leaf.sum().backward()
    assert len(seen) == 1


def test_backward_of_many_elements_and_with_weights() -> None:
    leaf = x().requires_grad_()
    (leaf * leaf).backward()
    assert torch.equal(leaf.grad, 2 * x())
    leaf.grad = None
    (leaf * leaf).backward(grad_tensor=torch.full((2, 3), 3.0), retain_graph=True)
    assert torch.equal(leaf.grad, 6 * x())


def test_names_work_on_fake_tensors_parameters_and_in_one_graph() -> None:
    with FakeTensorMode():
        assert torch.ones(2, 3).transpose([1, 0]).astype("int32").shape == (3, 2)
    assert torch.nn.Parameter(x()).transpose([1, 0]).shape == (3, 2)
    assert torch.nn.Parameter(x()).stop_gradient is False

    def program(x: Tensor) -> Tensor:
        return x.sum(axis=1) + x.astype("float64").split(3, axis=1)[0].squeeze([1]) + x.transpose([1, 0])[0]

    compiled = torch.compile(program, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x()), program(x()))


def test_modes_see_torchs_own_call() -> None:
    seen = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with Mode():
        x().sum(1)
    assert "sum" in seen


def test_a_subclass_keeps_its_own_functions() -> None:
    class Mine(Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return super().__torch_function__(func, types, args, kwargs or {})

    made = x().as_subclass(Mine)
    assert type(made.sum(1)) is Mine
    assert type(made.transpose([1, 0])) is Mine


def test_distributed_tensors_have_the_names_and_keep_theirs() -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        made = torch.distributed.tensor.distribute_tensor(x(), mesh, [torch.distributed.tensor.Shard(0)])
        assert made.is_dist()
        assert not x().is_dist()
        assert not hasattr(x(), "placements")
        assert (made.num_shard, x().num_shard) == (1, None)
        assert made.process_mesh is mesh
        assert made.stop_gradient
        torch.testing.assert_close(made.transpose([1, 0]).full_tensor(), x().t())
        torch.testing.assert_close(made.astype("float64").sum(axis=1).full_tensor(), x().double().sum(1))
    finally:
        torch.distributed.destroy_process_group()


def test_arrays_are_copies_where_asked() -> None:
    paddle.patch_tensor(copy_arrays=True)
    try:
        x = torch.zeros(2)
        lent, converted = x.numpy(), np.asarray(x)
        x.fill_(1)
        assert lent.tolist() == converted.tolist() == [0, 0]
    finally:
        paddle.unpatch_tensor()
    x = torch.zeros(2)
    lent = x.numpy()
    x.fill_(1)
    assert lent.tolist() == [1, 1]
