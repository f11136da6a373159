"""Training steps whose CPU tensors all live in a pool of the second argument's bytes: `keep`, `evict` or `plan`.

A plan is made for 90% in a pool that is large enough, then something else takes all but those bytes.

Started by test_pool_pressure.py with the shim's path in OARLOCK_SHIM; prints one line of JSON.
"""

import ctypes
import json
import os
import sys
from contextlib import nullcontext

import torch
from torch import nn

from oarlock import _native
from oarlock.digest import digest64
from oarlock.memory import Pool
from oarlock.memory.offload import HostTier, make_plan, profile
from oarlock.memory.offload.apply import Applied

WIDTH, ROWS, LAYERS = 128, 512, 8


def main() -> None:
    policy, capacity = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    shim = ctypes.CDLL(os.environ["OARLOCK_SHIM"])
    pool = Pool(1 << 30 if policy == "plan" else capacity, driver="host", page_bytes=64 << 10)
    pool.serve_torch(0)
    library = _native.library()
    shim.shim_use_pool(library.oarlock_torch_malloc, library.oarlock_torch_free)

    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(LAYERS)]
    model = nn.Sequential(*layers)
    x = torch.randn(ROWS, WIDTH)
    foreign: list[int] = []  # what another owner of pool memory was asked for
    pool.set_pressure(lambda size, stream: bool(foreign.append(size)))

    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(x).square().mean().backward()

    tier = HostTier()
    result: dict[str, object] = {}
    try:
        if policy == "plan":
            plan = make_plan(profile(model, step, tier=tier), "90%")
            model.zero_grad(set_to_none=True)
            pool.malloc((1 << 30) - capacity)
            applied: Applied | None = plan.apply(model, tier=tier, pool=pool)
        else:
            applied = None if policy == "keep" else Applied(model, tier=tier, pool=pool)
        with applied or nullcontext():
            for _ in range(3):
                step()
        result["evicted"] = 0 if applied is None else applied.evicted_bytes
        result["digests"] = [f"{digest64(p.grad):016x}" for p in model.parameters() if p.grad is not None]
    except (RuntimeError, MemoryError) as error:
        result["error"] = str(error)
    stats = pool.stats()
    result |= {
        "peak": stats.peak_live_bytes,
        "reserved": stats.peak_reserved_bytes,
        "pressure": stats.num_pressure_calls,
        "foreign": len(foreign),
        "tier": tier.used_bytes,
    }
    pool.check()
    print(json.dumps(result), flush=True)
    os._exit(0)  # tensors outlive the pool's Python object


if __name__ == "__main__":
    main()
