import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oarlock.generate.cache import KeyValueCache


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(0, 12))
@settings(max_examples=50, deadline=None)
def test_appends_equal_concatenation(widths, capacity):
    cache = KeyValueCache(2, capacity=capacity)
    keys, values = [], []
    for width in widths:
        before = cache.length
        keys.append(torch.randn(2, width, 3, 4))
        values.append(torch.randn(2, width, 3, 6))
        for layer in range(2):
            assert cache.length == before  # a forward pass sees one length, whatever its layers appended
            key, value = cache.append(layer, keys[-1] + layer, values[-1] - layer)
            assert torch.equal(key, torch.cat(keys, 1) + layer)
            assert torch.equal(value, torch.cat(values, 1) - layer)
    assert cache.length == sum(widths)


def test_storage_doubles_so_copies_stay_linear():
    cache = KeyValueCache(1)
    step = torch.ones(1, 1, 1, 1)
    pointers = []
    for _ in range(1000):
        pointers.append(cache.append(0, step, step)[0].data_ptr())
    assert len(set(pointers)) <= 11  # 1, 2, 4 ... 1024 columns
    assert cache.num_bytes == 2 * 1024 * step.element_size()


def test_known_capacity_is_allocated_once():
    cache = KeyValueCache(1, capacity=64)
    step = torch.ones(1, 8, 1, 1, dtype=torch.bfloat16)
    pointers = {cache.append(0, step, step)[0].data_ptr() for _ in range(8)}
    assert len(pointers) == 1


def test_reorder_and_crop():
    cache = KeyValueCache(2)
    key = torch.arange(24.0).view(3, 4, 1, 2)
    for layer in range(2):
        cache.append(layer, key, -key)
    cache.reorder(torch.tensor([2, 0, 2]))
    cache.crop(3)
    more = torch.full((3, 1, 1, 2), 7.0)
    for layer in range(2):
        all_keys, all_values = cache.append(layer, more, -more)
        assert torch.equal(all_keys, torch.cat([key[[2, 0, 2], :3], more], 1))
        assert torch.equal(all_values, -all_keys)
    assert cache.length == 4


def test_errors_name_the_number():
    with pytest.raises(ValueError, match=r"num_layers.*got 0"):
        KeyValueCache(0)
    cache = KeyValueCache(1)
    step = torch.zeros(2, 1, 1, 1)
    cache.append(0, step, step)
    with pytest.raises(ValueError, match="crop to 2 columns: the cache holds 1"):
        cache.crop(2)
    with pytest.raises(ValueError, match="holds 2 rows but 3 were appended"):
        cache.append(0, torch.zeros(3, 1, 1, 1), torch.zeros(3, 1, 1, 1))
