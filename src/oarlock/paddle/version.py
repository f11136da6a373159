"""The version of Paddle's API that this namespace follows. The version of Oarlock is `oarlock.__version__`."""

full_version = "3.3.1"
major, minor, patch = full_version.split(".")
rc = "0"
cuda_version = cudnn_version = "False"  # as Paddle says it without CUDA; torch.version.cuda knows of torch's


def show() -> None:
    """Print the version."""
    print(f"full_version: {full_version} (the API; it runs on torch)")


def cuda() -> str:
    """The version of CUDA that torch was built for, "False" without."""
    import torch

    return torch.version.cuda or "False"
