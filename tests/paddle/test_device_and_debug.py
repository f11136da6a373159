"""Names of devices, memory, logs and graphs, which are other parts of Oarlock under Paddle's paths."""

import logging
from pathlib import Path

import pytest
import torch

import oarlock.paddle as paddle
from oarlock.paddle.base.framework import backward_vlog_guard, vlog_guard
from oarlock.paddle.device import cuda
from oarlock.paddle.utils.bwd_graph_utils import capture_backward_subgraph_guard
from oarlock.paddle.utils.fwd_graph_utils import capture_forward_subgraph_guard


@pytest.mark.skipif(torch.accelerator.is_available(), reason="for machines without a device")
def test_without_a_device_memory_says_so() -> None:
    assert paddle.device.device_count() == 0
    assert paddle.device.get_all_device_type() == paddle.device.get_available_custom_device() == []
    assert not paddle.device.is_available()
    paddle.device.empty_cache()
    for name in ("max_memory_allocated", "memory_reserved", "synchronize", "current_stream", "reset_peak_memory_stats"):
        with pytest.raises(ValueError, match="no device but the CPU"):
            getattr(paddle.device, name)()


def test_a_device_for_new_tensors_of_a_block() -> None:
    with paddle.device.device_guard("meta"):
        assert torch.empty(2).device.type == "meta"
    assert torch.empty(2).device.type == "cpu"


def test_recorded_allocations_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with cuda.allocate_record_guard(True):
        kept = torch.ones(1 << 18)
    cuda.memory_summary()
    assert "at the peak" in capsys.readouterr().out
    cuda.allocate_record_table(save_path=str(tmp_path / "table.txt"))
    assert "Memory of" in (tmp_path / "table.txt").read_text()
    cuda.allocate_record_plot(save_path=str(tmp_path / "memory.html"))
    assert (tmp_path / "memory.html").stat().st_size > 1000
    assert kept.numel() == 1 << 18


def test_logs_of_a_block_and_of_its_backward(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.ones(2, requires_grad=True)
    with caplog.at_level(logging.INFO, "oarlock.debug"):
        with vlog_guard(1):
            x.exp()
        x.sin()
        with backward_vlog_guard(9):
            y = x.cos().sum()
        y.backward()
    text = caplog.text
    assert "exp in" in text
    assert "sin in" not in text
    assert "backward of cos" in text


def test_graphs_of_a_block(tmp_path: Path) -> None:
    x = torch.ones(2, requires_grad=True)
    with capture_forward_subgraph_guard(str(tmp_path / "forward.dot")):
        x.exp().sum()
    assert "exp" in (tmp_path / "forward.dot").read_text()
    with capture_backward_subgraph_guard(str(tmp_path / "graph"), need_dump_grad_tensors=True):
        x.exp().sum().backward()
    assert "ExpBackward" in (tmp_path / "graph" / "graph.dot").read_text()
    assert (tmp_path / "graph" / "graph.html").exists()
    paddle.autograd.backward([x.sin().sum()], dump_backward_graph_path=str(tmp_path / "own"))
    assert "SinBackward0" in (tmp_path / "own" / "backward_graph.dot").read_text()
