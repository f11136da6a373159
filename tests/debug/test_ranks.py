"""Traces of several real processes: a file for each rank, compared rank by rank."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from oarlock import debug
from oarlock.cli.main import main
from process_group import run_ranks


def worker(folder: str, fault: bool) -> list[str]:
    """Two steps of data parallelism; in the second run rank 1 flips the sign of a gradient that it sends."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    with debug.trace(model, folder, digests="sha1") as t:
        for _ in range(2):
            model(torch.randn(8, 4, generator=generator)).square().mean().backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                if fault and dist.get_rank() == 1 and parameter.ndim == 1:
                    parameter.grad.neg_()
                dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()
            t.step()
    names = sorted(path.name for path in Path(folder).iterdir())
    dist.barrier()
    dist.destroy_process_group()
    return names


def test_two_ranks_are_recorded_and_compared_rank_by_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, fault in (("a", False), ("b", False), ("c", True)):
        run_ranks(2, worker, str(tmp_path / name), fault, timeout=120)
        assert list(debug.trace_files(tmp_path / name)) == [0, 1]
    assert main(["debug", "diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    same = capsys.readouterr().out
    assert "rank 0: " in same
    assert "rank 1: " in same
    assert main(["debug", "diff", str(tmp_path / "a"), str(tmp_path / "c")]) == 1
    found = capsys.readouterr().out.partition("rank 1: ")[2]
    assert "neg_" in found  # the call that only that run has
    # Ranks of one run differ in their data: two files may be named, too.
    files = [str(tmp_path / "a" / f"trace.rank{rank}.jsonl") for rank in (0, 1)]
    assert main(["debug", "diff", *files]) == 1
    (tmp_path / "b" / "trace.rank1.jsonl").unlink()
    assert main(["debug", "diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "name two files" in capsys.readouterr().err
