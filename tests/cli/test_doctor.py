"""`oarlock doctor`: all well here; what is broken fails it, what is only absent does not."""

import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from oarlock import _native
from oarlock.cli import doctor
from oarlock.cli.main import main


def test_this_installation_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert text.endswith("everything needed works\n")
    for expected in (
        torch.__version__,
        f"ABI {_native.ABI}",
        "liboarlock",
        "used for fp32",
        "used for decoding",
        "differs from the reference",
    ):
        assert expected in text


def statuses(checks: Iterator[doctor.Check]) -> dict[str, str]:
    return {check.name: check.status for check in checks}


def test_a_missing_core_fails_and_is_explained(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> str:
        raise ImportError("the C++ core liboarlock.so is not built")

    monkeypatch.setattr(_native, "version", missing)
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "ImportError: the C++ core liboarlock.so is not built" in text
    assert "broken: C++ core" in text
    assert "Optional" in text  # the other checks still ran


def test_old_versions_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")
    monkeypatch.setattr(sys, "version_info", (3, 10, 0))
    found = statuses(doctor.needed())
    assert (found["torch"], found["python"], found["numpy"]) == ("broken", "broken", "ok")


def test_a_wrong_backend_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from oarlock import attention

    real = attention.flashmask_attention

    def wrong(*args: object, backend: str = "auto", **kwargs: object) -> torch.Tensor:
        out = real(*args, backend=backend, **kwargs)  # type: ignore[arg-type]
        assert isinstance(out, torch.Tensor)
        return out + 1 if backend == "auto" else out

    monkeypatch.setattr(attention, "flashmask_attention", wrong)
    assert statuses(doctor.backends())["attention cpu"] == "broken"


def test_a_backend_that_cannot_be_used_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    from oarlock import providers
    from oarlock.attention.request import OP

    elsewhere = providers.Provider(OP, "lunar", lambda: None, lambda _: "runs on the moon", priority=5)
    monkeypatch.setitem(providers._registry[OP], "lunar", elsewhere)
    (check,) = (check for check in doctor.backends() if check.name == "attention cpu lunar")
    assert (check.status, check.detail) == ("absent", "runs on the moon")


def test_an_absent_extra_names_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "rich":
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    checks = {check.name: check for check in doctor.optional()}
    assert checks["rich"].status == "absent"
    assert "pip install rich" in checks["rich"].fix
    assert checks["tyro"].status == "ok"


def test_a_second_openmp_runtime_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_openmp_runtimes", lambda: ["libgomp.so.1", "libomp.so"])
    assert statuses(doctor.machine())["OpenMP"] == "warning"


@pytest.mark.timeout(60)
def test_a_broken_torch_does_not_break_the_doctor() -> None:
    program = "import sys; sys.modules['torch'] = None; from oarlock.cli.main import main; sys.exit(main(['doctor']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 1, done.stderr
    assert "broken  torch" in done.stdout
    assert "Optional" in done.stdout
