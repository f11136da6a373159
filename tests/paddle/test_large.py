"""Functions of more than 2³¹ elements: no index is cut to 32 bits."""

import pytest
import torch

import oarlock.paddle as paddle

pytestmark = pytest.mark.large  # 2 GiB of int8 at a time
COUNT = 2**31 + 16


@pytest.fixture(scope="module")
def zeros() -> torch.Tensor:
    return torch.zeros(COUNT, dtype=torch.int8)


def test_the_largest_element_is_found_beyond_2_31(zeros: torch.Tensor) -> None:
    zeros[-3] = 5
    assert int(paddle.argmax(zeros)) == COUNT - 3
    assert int(paddle.max(zeros)) == 5
    assert int(paddle.nonzero(zeros)) == COUNT - 3
    zeros[-3] = 0


def test_all_elements_are_counted_and_summed(zeros: torch.Tensor) -> None:
    zeros.fill_(1)
    assert int(paddle.count_nonzero(zeros)) == COUNT
    assert int(paddle.sum(zeros)) == COUNT % 256  # the sum of int8 is int8
    assert bool(paddle.all(zeros))
    zeros.zero_()


def test_arithmetic_in_place_reaches_the_end(zeros: torch.Tensor) -> None:
    paddle.add_(zeros, 2)
    paddle.bitwise_left_shift_(zeros, torch.tensor(1, dtype=torch.int8))
    assert zeros[-1] == 4
    assert int(paddle.numel(zeros)) == COUNT
    zeros.zero_()
