"""`oarlock doctor`: what this installation can do, and why not. Exit status 1 if something needed is broken."""

import argparse
import importlib
import importlib.metadata
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

PYTHON = ((3, 11), (3, 13))
TORCH = (2, 11)
EXTRAS = {  # package -> (extra that brings it, what it is for)
    "tokenizers": ("train", "training and reading tokenizers"),
    "tyro": ("train", "the list of options of oarlock train"),
    "rich": ("train", "the live progress line"),
    "tensorboard": ("train", "TensorBoard event files"),
}


@dataclass(frozen=True)
class Check:
    """One line of the answer. `broken` fails the command; `absent` and `warning` do not."""

    status: Literal["ok", "absent", "warning", "broken"]
    name: str
    detail: str
    fix: str = ""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "doctor",
        help="what this installation can do, and why not",
        description="Check versions, the C++ core, devices, backends and optional packages.",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print all checks; 1 if one is broken."""
    sections: list[tuple[str, Callable[[], Iterator[Check]]]] = [
        ("Needed", needed),
        ("Machine", machine),
        ("Backends", backends),
        ("Optional", optional),
    ]
    broken = []
    for title, checks in sections:
        print(("\n" if title != sections[0][0] else "") + title)
        for check in _guarded(title, checks):
            print(f"  {check.status:8}{check.name:32}{check.detail}".rstrip())
            if check.fix:
                print(f"  {'':8}{'':32}-> {check.fix}")
            broken += [check] if check.status == "broken" else []
    print(
        "\n" + (f"{len(broken)} broken: {', '.join(c.name for c in broken)}" if broken else "everything needed works")
    )
    return 1 if broken else 0


def needed() -> Iterator[Check]:
    """Versions of what every part needs, and the C++ core."""
    low, high = (".".join(map(str, v)) for v in PYTHON)
    yield Check(
        "ok" if PYTHON[0] <= sys.version_info[:2] <= PYTHON[1] else "broken",
        "python",
        f"{platform.python_version()} ({low} to {high} are supported), {sys.executable}",
    )
    for package in ("torch", "numpy", "safetensors"):
        try:
            module = importlib.import_module(package)
        except Exception as error:  # a broken binary can raise anything
            yield Check("broken", package, f"{type(error).__name__}: {error}", f"pip install {package}")
            continue
        version = str(module.__version__)
        if package == "torch" and tuple(int(part) for part in version.split(".")[:2]) < TORCH:
            wanted = ".".join(map(str, TORCH))
            yield Check("broken", package, f"{version} is older than {wanted}", f"pip install 'torch>={wanted}'")
        else:
            yield Check("ok", package, version)
    yield from _guarded("C++ core", _core)


def machine() -> Iterator[Check]:
    """Processor, memory, threads and accelerators."""
    import torch

    from oarlock.train.environment import memory_available, memory_total, num_cores, processor_name
    from oarlock.train.units import format_bytes

    isa = torch.backends.cpu.get_cpu_capability()
    yield Check("ok", "processor", f"{processor_name()}, {num_cores()} cores, {isa}")
    available = memory_available()
    free = f", {format_bytes(available)} available" if available is not None else ""
    yield Check("ok", "memory", f"{format_bytes(memory_total())}{free}")
    yield Check(
        "ok", "threads", f"{torch.get_num_threads()} in an operation, {torch.get_num_interop_threads()} between"
    )
    runtimes = _openmp_runtimes()
    if len(runtimes) > 1:
        yield Check(
            *("warning", "OpenMP", f"{len(runtimes)} runtimes are loaded: {', '.join(runtimes)}"),
            "each brings its own threads; import torch first, build the C++ core with g++",
        )
    elif runtimes:
        yield Check("ok", "OpenMP", runtimes[0])
    for device in _accelerators():
        module = getattr(torch, device.type)
        memory = format_bytes(module.get_device_properties(device).total_memory)
        yield Check("ok", str(device), f"{module.get_device_name(device)}, {memory}")
    if not _accelerators():
        yield Check("absent", "accelerator", "none that this torch can use; the CPU computes")


def backends() -> Iterator[Check]:
    """What every provider of attention is used for, or why not, and whether attention agrees with its reference."""
    import torch

    from oarlock import attention, providers
    from oarlock.attention.request import OP, AttentionRequest

    for device in [torch.device("cpu"), *_accelerators()]:
        calls = {
            "fp32": AttentionRequest(device, torch.float32),
            "bf16": AttentionRequest(device, torch.bfloat16),
            "fp64": AttentionRequest(device, torch.float64),
            "decoding": AttentionRequest(device, torch.float32, is_decoding=True),
        }
        for provider in providers.providers(OP):
            reasons = {call: provider.refuse(request) for call, request in calls.items()}
            used = [call for call, request in calls.items() if _first(OP, request) == provider.name]
            refused = all(reasons.values())
            role = f"used for {', '.join(used)}" if used else reasons["fp32"] if refused else "applies too"
            yield Check("absent" if refused else "ok", f"attention {device} {provider.name}", role or "")
        query, key, value = torch.randn(3, 1, 64, 2, 16, device=device).unbind()
        mask = attention.ColumnMask.causal_document([40, 24], device=device)
        out = attention.flashmask_attention(query, key, value, mask)
        expected = attention.flashmask_attention(query, key, value, mask, backend="reference")
        assert isinstance(out, torch.Tensor)
        assert isinstance(expected, torch.Tensor)
        error = float((out - expected).abs().max())
        status = "ok" if error < 1e-4 else "broken"
        yield Check(status, f"attention {device}", f"differs from the reference by {error:.1e}")
    for op in providers.operations():
        if op != OP:
            yield Check("ok", op, ", ".join(provider.name for provider in providers.providers(op)))


def optional() -> Iterator[Check]:
    """Packages that single features need."""
    for package, (extra, purpose) in EXTRAS.items():
        try:
            yield Check("ok", package, f"{importlib.metadata.version(package)}, {purpose}")
        except importlib.metadata.PackageNotFoundError:
            yield Check("absent", package, purpose, f"pip install {package}   (or all of 'oarlock[{extra}]')")


def _core() -> Iterator[Check]:
    import torch

    from oarlock import _native

    detail = f"{_native.version()}, ABI {_native.ABI}, {_native.library_path().resolve()}"
    # Row 0 sees key 0; row 1 sees both keys of [0, 1]; key 0 is hidden from row 2 on, where key 1 and 2 stay.
    bounds = torch.tensor([[[2], [3], [3]]], dtype=torch.int32)
    counts = _native.mask_visible_per_row(bounds, causal=True, seqlen_q=3).tolist()
    if counts == [[1, 2, 2]]:
        yield Check("ok", "C++ core", detail)
    else:
        yield Check("broken", "C++ core", f"{detail} counts {counts}, not [[1, 2, 2]]", "build it again")


def _first(op: str, request: object) -> str | None:
    """Name of the provider that computes a request; None if there is none."""
    from oarlock import providers

    return next((name for name, reason in providers.explain(op, request) if reason is None), None)


def _guarded(name: str, checks: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    """The checks; an exception becomes the last one, because a doctor must not fall ill."""
    try:
        yield from checks()
    except Exception as error:
        yield Check("broken", name, f"{type(error).__name__}: {error}")


def _accelerators() -> "list":
    import torch

    if not torch.accelerator.is_available():
        return []
    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    return [torch.device(kind.type, index) for index in range(torch.accelerator.device_count())]


def _openmp_runtimes() -> list[str]:
    """File names of the OpenMP runtimes in this process (Linux only, else none)."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    paths = {line.split()[-1] for line in maps.splitlines() if ".so" in line}
    names = ("libgomp", "libomp", "libiomp5")
    return sorted({Path(path).name for path in paths if Path(path).name.startswith(names)})
