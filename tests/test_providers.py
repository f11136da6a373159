"""The registry picks the first provider that applies, and says why another one does not."""

import gc
import threading

import pytest

from oarlock import providers


@pytest.fixture
def op(monkeypatch):
    monkeypatch.setattr(providers, "_registry", {})

    @providers.register("add", "slow", priority=0, refuse=lambda request: None)
    def slow(a, b):
        return a + b

    @providers.register("add", "fast", priority=10, refuse=lambda n: None if n % 2 == 0 else f"{n} is odd")
    def fast(a, b):
        return a + b

    return "add"


def test_auto_takes_the_highest_priority_that_applies(op):
    assert providers.select(op, 2).name == "fast"
    assert providers.select(op, 3).name == "slow"
    assert providers.select(op, 2, "slow").function(1, 2) == 3


def test_a_named_provider_that_does_not_apply_says_why(op):
    with pytest.raises(ValueError, match="'fast' of add does not apply: 3 is odd"):
        providers.select(op, 3, "fast")
    assert providers.explain(op, 3) == [("fast", "3 is odd"), ("slow", None)]


def test_unknown_names_list_the_known_ones(op):
    with pytest.raises(ValueError, match="choose 'auto' or one of 'fast', 'slow'"):
        providers.select(op, 2, "faster")
    with pytest.raises(ValueError, match="unknown operation 'mul'; known: add"):
        providers.select("mul", 2)


def test_no_provider_applies(monkeypatch):
    monkeypatch.setattr(providers, "_registry", {})
    providers.register("op", "only", priority=0, refuse=lambda request: "no GPU")(print)
    with pytest.raises(ValueError, match="only: no GPU"):
        providers.select("op", None)


def test_names_are_unique_and_auto_is_reserved(op):
    with pytest.raises(ValueError, match="already"):
        providers.register(op, "slow", priority=0, refuse=lambda request: None)(print)
    with pytest.raises(ValueError, match="auto"):
        providers.register(op, "auto", priority=0, refuse=lambda request: None)


def test_a_watch_that_was_left_without_an_end_does_not_end_another(op):
    left = []

    def leave():
        left.append(providers.watch_choices())
        left[0].__enter__()

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    with providers.watch_choices() as choices:
        left.clear()
        gc.collect()
        providers.select(op, 3)
    assert choices == [(op, "slow")]
