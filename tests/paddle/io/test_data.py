"""Samplers over few samples, loaders, files in memory, and what casting says of itself."""

import io
from collections.abc import Iterator

import pytest
import torch

import oarlock.paddle as paddle
from oarlock.paddle.io import DataLoader, Dataset, DistributedBatchSampler


class Numbers(Dataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __getitem__(self, index: int) -> int:
        return index

    def __len__(self) -> int:
        return self.count


@pytest.fixture(autouse=True)
def _patched() -> Iterator[None]:
    paddle.patch_tensor()
    yield
    paddle.unpatch_tensor()


@pytest.mark.parametrize(("count", "ranks"), [(1, 4), (2, 5), (5, 4), (11, 3)])
def test_every_rank_has_as_many_samples(count: int, ranks: int) -> None:
    """The end is filled up from the beginning, as often as that takes; recorded: Paddle gives [[0]] to rank 4 of 5."""
    every = [list(DistributedBatchSampler(Numbers(count), 1, ranks, rank)) for rank in range(ranks)]
    assert len({len(batches) for batches in every}) == 1
    assert {index for batches in every for batch in batches for index in batch} == set(range(count))
    if (count, ranks) == (2, 5):
        assert every[4] == [[0]]


def test_a_loader_takes_the_size_of_a_buffer() -> None:
    batches = list(DataLoader(Numbers(4), batch_size=2, reader_buffer_size=4))
    assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("safetensors", [False, True])
def test_files_in_memory(safetensors: bool) -> None:
    file = io.BytesIO()
    paddle.save({"a": torch.arange(3.0)}, file, safetensors=safetensors)
    file.seek(0)
    assert torch.equal(paddle.load(file, safetensors=safetensors)["a"], torch.arange(3.0))


def test_casting_says_what_it_does() -> None:
    assert not paddle.amp.is_autocast_enabled()
    with paddle.amp.auto_cast(dtype="bfloat16"):
        assert paddle.amp.is_autocast_enabled()
        assert paddle.amp.get_autocast_dtype() == "bfloat16"
