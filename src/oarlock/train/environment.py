"""What a run ran on: versions, processor, threads, memory, device. Saved with the run, shown by the report."""

import os
import platform
import resource
import sys
from pathlib import Path

import torch

from oarlock import __version__

__all__ = ["environment", "memory_available", "memory_total", "num_cores", "peak_memory_bytes", "processor_name"]


def environment(device: torch.device | str | None = None) -> dict[str, str | int]:
    """Versions and machine as plain values.

    Args:
        device: where the run computes; its name is added unless it is the CPU.
    """
    found: dict[str, str | int] = {
        "oarlock": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": processor_name(),
        "cores": num_cores(),
        "threads": torch.get_num_threads(),
        "memory_bytes": memory_total(),
    }
    device = torch.device(device) if device is not None else None
    if device is not None and device.type != "cpu":
        module = getattr(torch, device.type)
        found["device"] = f"{device}: {module.get_device_name(device)}"
        found["device_memory_bytes"] = module.get_device_properties(device).total_memory
        if torch.version.cuda:
            found["cuda"] = torch.version.cuda
    return found


def num_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_total() -> int:
    """Bytes of main memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def memory_available() -> int | None:
    """Bytes that new work can take without swapping; None where the system does not say."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:  # not Linux
        pass
    return None


def peak_memory_bytes(device: torch.device) -> int:
    """Largest memory of this process so far: allocated on the device for CUDA, resident in RAM on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def processor_name() -> str:
    """The processor's name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:  # not Linux
        pass
    return platform.processor() or platform.machine()
