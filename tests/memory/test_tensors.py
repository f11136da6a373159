"""torch tensors in a pool: a training step gives the same bits, memory comes back, the cap holds."""

import copy
import gc

import pytest
import torch

from oarlock.memory import OutOfMemoryError, Pool, empty

PAGE = 64 << 10


@pytest.fixture(params=["host", "host_memfd"])
def pool(request: pytest.FixtureRequest):
    with Pool(64 * PAGE, driver=request.param, page_bytes=PAGE) as pool:
        yield pool
        pool.check()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_shapes_and_dtypes(pool: Pool, dtype: torch.dtype) -> None:
    for size in ((), (1,), (3, 5), (2, 3, 4), (0, 4)):
        tensor = empty(pool, size, dtype=dtype)
        assert (tensor.shape, tensor.dtype, tensor.is_contiguous()) == (torch.Size(size), dtype, True)
        tensor.copy_(torch.ones(size, dtype=dtype))
        assert tensor.eq(1).all()
    del tensor
    assert pool.stats().live_bytes == 0


def test_the_last_view_frees(pool: Pool) -> None:
    tensor = empty(pool, (100, 100))
    assert tensor.dtype == torch.float32
    view = tensor[3:5].t()
    del tensor
    assert pool.stats().requested_bytes == 40_000
    del view
    assert pool.stats().live_bytes == 0


def test_live_tensors_keep_their_bits_while_pages_move(pool: Pool) -> None:
    tensors = [empty(pool, (PAGE // 4,)).fill_(i) for i in range(64)]
    addresses = [tensor.data_ptr() for tensor in tensors[1::2]]
    del tensors[::2]
    large = empty(pool, (32 * PAGE // 4,)).fill_(-1)
    assert pool.stats().moved_pages > 0
    assert [tensor.data_ptr() for tensor in tensors] == addresses
    assert all(tensor.eq(2 * i + 1).all() for i, tensor in enumerate(tensors))
    with pytest.raises(OutOfMemoryError):
        empty(pool, (PAGE,))
    assert large.eq(-1).all()


def test_a_model_trains_in_the_pool_bit_for_bit(pool: Pool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 8))
    twin = copy.deepcopy(model)
    for parameter in model.parameters():
        parameter.data = empty(pool, parameter.shape).copy_(parameter.data)
    x = torch.randn(32, 64)
    for net in (model, twin):
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        for _ in range(3):
            net(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    del model, net, optimizer
    gc.collect()


def test_what_cannot_be() -> None:
    with Pool(PAGE, driver="sim", page_bytes=PAGE) as simulated, pytest.raises(ValueError, match="host memory"):
        empty(simulated, (2,))
    with Pool(PAGE, page_bytes=PAGE) as pool, pytest.raises(ValueError, match="negative"):
        empty(pool, (2, -1))
    with Pool(PAGE, page_bytes=PAGE) as pool, pytest.raises(TypeError, match=r"dtype = 'float32': give a torch dtype"):
        empty(pool, (2,), dtype="float32")  # pyright: ignore[reportArgumentType]


def test_a_tensor_may_outlive_its_pool() -> None:
    pool = Pool(4 * PAGE, page_bytes=PAGE)
    tensor = empty(pool, (100,))
    pool.close()
    del pool, tensor
    gc.collect()
