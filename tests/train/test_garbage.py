"""Python's garbage collector during a training."""

import gc

import pytest

from oarlock.train.garbage import collection_at_chosen_steps


def test_it_runs_only_when_asked_and_then_as_before() -> None:
    assert gc.isenabled()
    with collection_at_chosen_steps(True):
        assert not gc.isenabled()
        assert gc.get_freeze_count() > 0
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_an_error_gives_it_back() -> None:
    with pytest.raises(KeyError), collection_at_chosen_steps(True):
        raise KeyError
    assert gc.isenabled()


def test_who_had_switched_it_off_keeps_it_off() -> None:
    gc.disable()
    try:
        with collection_at_chosen_steps(True):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_inactive_it_changes_nothing() -> None:
    with collection_at_chosen_steps(False):
        assert gc.isenabled()
        assert gc.get_freeze_count() == 0
