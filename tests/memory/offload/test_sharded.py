"""FSDP2 and DTensor: weights that are unsharded for a moment are never sent out; gradients stay as they are."""

import torch
from torch import Tensor, nn

from process_group import run_ranks


def worker() -> list[bool]:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    from oarlock.memory.offload import HostTier
    from oarlock.memory.offload.session import Session

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32)) for _ in range(2)))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    x = torch.randn(16, 32)

    def grads() -> list[Tensor]:
        model.zero_grad()
        model(x).square().sum().backward()
        return [p.grad.to_local().clone() for p in model.parameters()]

    def same(a: list[Tensor], b: list[Tensor]) -> bool:
        return len(a) == len(b) and all(torch.equal(u, v) for u, v in zip(a, b, strict=True))

    expected = grads()
    results = []
    with HostTier() as tier:
        with Session(model, device=torch.device("cpu"), tier=tier, min_bytes=1, at_once=True):
            results.append(same(grads(), expected))
        saved = 2 * 16 * (32 + 64 + 64) * 4 + 16 * 32 * 4  # activations only; tanh saves what the next layer takes
        results.append(tier.out_bytes <= saved)
        weight = distribute_tensor(torch.randn(32, 32), mesh, [Replicate()]).requires_grad_()
        tall = distribute_tensor(torch.randn(16, 32), mesh, [Shard(0)])
        lone = nn.Tanh()

        def grad() -> Tensor:
            weight.grad = None
            lone(tall @ weight).sum().backward()
            assert isinstance(weight.grad, DTensor)
            return weight.grad.full_tensor()

        plain = grad()
        before = tier.out_bytes
        with Session(lone, device=torch.device("cpu"), tier=tier, min_bytes=1, at_once=True):
            results.append(torch.equal(grad(), plain))
        results.append(tier.out_bytes > before)
    dist.destroy_process_group()
    return results


def test_sharded_models_keep_their_gradients() -> None:
    for results in run_ranks(2, worker):
        assert results == [True, True, True, True]
