"""The matmul peak of this machine, measured: the yardstick of a training step."""

import time
from collections.abc import Callable

import torch

__all__ = ["matmul_peak"]

# Large enough to hide call costs, small enough for the time limit; an accelerator needs larger ones to fill up.
_SIZES = {"cpu": (512, 768, 1024)}
_ACCELERATOR_SIZES = (2048, 4096, 8192)


def matmul_peak(
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    threads: int | None = None,
    *,
    seconds: float = 0.6,
) -> float:
    """The highest rate that square matrix products reach here and now, in FLOP/s.

    For every size n the shortest of several interleaved runs of `C = A B` counts as 2 n^3 / time; the result is the
    best size's rate. Interleaving lets a short disturbance hit all sizes instead of one.

    Args:
        dtype: of A, B and C.
        device: where they lie.
        threads: CPU threads to use; None keeps `torch.get_num_threads()`. The old number is restored.
        seconds: time to spend on repetitions; each size runs at least twice (the first, cold run does not count), so
            a machine that is very slow in `dtype` takes longer.

    Returns:
        FLOP/s, a multiply and an add counted as two.
    """
    device = torch.device(device)
    num_threads = torch.get_num_threads()
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        return _best_rate(dtype, device, seconds)
    finally:
        if threads is not None:
            torch.set_num_threads(num_threads)


def _best_rate(dtype: torch.dtype, device: torch.device, seconds: float) -> float:
    sizes = _SIZES.get(device.type, _ACCELERATOR_SIZES)
    deadline = time.perf_counter() + seconds
    best = 0.0
    with torch.inference_mode():
        products = {n: _product(n, dtype, device) for n in sizes}
        for product in products.values():  # cold: page faults, kernel choice
            _time(product, device)
        while True:
            for n, product in products.items():
                best = max(best, 2 * n**3 / _time(product, device))
            if time.perf_counter() >= deadline:
                return best


def _product(n: int, dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
    # Random, because equal values let a GPU draw less power and clock higher than real work does; from a generator of
    # its own, because a measurement must not change the random numbers of the run around it.
    generator = torch.Generator(device).manual_seed(0)
    left, right = (torch.randn(n, n, generator=generator, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=out)


def _time(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, with the device waited for."""
    is_async = device.type != "cpu"
    if is_async:
        torch.accelerator.synchronize(device)
    begin = time.perf_counter()
    call()
    if is_async:
        torch.accelerator.synchronize(device)
    return time.perf_counter() - begin
