"""A training run whose CPU tensors all live where the first argument says: `torch`, `pool BYTES` or `fixed BYTES`.

Started by test_whole_run.py with the shim's path in OARLOCK_SHIM; prints one line of JSON.
"""

import ctypes
import json
import os
import random
import sys

import torch

from oarlock import _native
from oarlock.digest import digest64
from oarlock.memory import Pool
from oarlock.models import Decoder, DecoderConfig

PAGE = 64 << 10  # to a tensor of this model what 2 MiB are to one on a GPU


def install(arguments: list[str]) -> Pool | None:
    if arguments[0] == "torch":
        return None
    shim = ctypes.CDLL(os.environ["OARLOCK_SHIM"])
    if arguments[0] == "fixed":
        shim.shim_use_fixed(ctypes.c_uint64(int(arguments[1])))
        return None
    pool = Pool(int(arguments[1]), driver="host", page_bytes=PAGE)
    library = _native.library()
    pool.serve_torch(0)
    shim.shim_use_pool(library.oarlock_torch_malloc, library.oarlock_torch_free)
    return pool


def train() -> tuple[float, list[torch.Tensor]]:
    """Two steps of three microbatches of varying length, layers recomputed, AdamW."""
    choose = random.Random(0)
    generator = torch.Generator().manual_seed(0)
    config = DecoderConfig(
        model_type="qwen3_moe",
        vocab_size=2048,
        hidden_size=192,
        intermediate_size=256,
        moe_intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_experts=8,
        num_experts_per_tok=2,
        max_position_embeddings=512,
    )
    model = Decoder(config)
    model.initialize(generator)
    model.activation_checkpointing = True
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    loss = torch.zeros(())
    for _ in range(2):
        for _ in range(3):
            seqlen = choose.randrange(100, 512)
            ids = torch.randint(config.vocab_size, (2, seqlen + 1), generator=generator)
            hidden = model(ids[:, :-1])
            loss = torch.nn.functional.cross_entropy(model.logits(hidden).flatten(0, 1), ids[:, 1:].flatten())
            (loss / 3).backward()
            del hidden
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss.item(), list(model.parameters())


def main() -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    pool = install(sys.argv[1:])
    try:
        loss, parameters = train()
    except (RuntimeError, MemoryError) as error:
        print(json.dumps({"error": str(error)}))
        return
    digests = [f"{digest64(p.detach()):016x}" for p in parameters]
    result: dict[str, object] = {"loss": loss, "digests": digests}
    if pool is not None:
        stats = pool.stats()
        result |= {
            "peak": stats.peak_live_bytes,
            "reserved": stats.peak_reserved_bytes,
            "moved_pages": stats.moved_pages,
            "allocations": stats.num_allocations,
            "parameters_in_pool": sum(p.data_ptr() in {b.addr for b in pool.blocks()} for p in parameters[:8]),
        }
        pool.check()
    print(json.dumps(result), flush=True)
    os._exit(0)  # tensors outlive the pool's Python object


if __name__ == "__main__":
    main()
