"""What the tests of memory share."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

FOLDER = Path(__file__).parent


@pytest.fixture(scope="session")
def shim() -> Path:
    """A library that puts torch's CPU tensors into a pool, compiled against this torch's headers, once."""
    if not sys.platform.startswith("linux"):
        pytest.skip("the host driver is for Linux")
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    source = FOLDER / "shim" / "shim.cpp"
    key = hashlib.sha1(source.read_bytes() + torch.__version__.encode()).hexdigest()[:12]
    library = FOLDER.parents[1] / ".cache" / "shim" / f"{key}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        unfinished = library.with_suffix(f".{os.getpid()}")
        torch_libraries = Path(torch.__file__).parent / "lib"
        command = [
            *(compiler, "-std=c++20", "-O1", "-fPIC", "-shared", str(source), "-o", str(unfinished)),
            *(f"-I{path}" for path in cpp_extension.include_paths()),
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
            *(f"-L{torch_libraries}", "-lc10"),
        ]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=200)
        unfinished.replace(library)
    return library
