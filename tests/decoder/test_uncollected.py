"""Doing without the garbage collector for a while."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from ladecli import launch
from ladecli.decoder.uncollected import uncollected


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    yield
    gc.enable()


def test_nothing_is_collected_meanwhile_and_all_is_afterwards() -> None:
    frozen = gc.get_freeze_count()
    with uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() == frozen


def test_what_stays_for_good_is_not_looked_at_again() -> None:
    frozen = gc.get_freeze_count()
    with uncollected(for_good=True):
        stays = [object()]
    assert gc.get_freeze_count() > frozen
    assert all(each is not stays for each in gc.get_objects())


def test_a_collector_that_was_off_stays_off_and_errors_turn_it_on_again() -> None:
    gc.disable()
    with uncollected():
        pass
    assert not gc.isenabled()
    gc.enable()
    with pytest.raises(ValueError, match="no such model"), uncollected():
        raise ValueError("no such model")
    assert gc.isenabled()


def test_modules_stay_for_good_but_not_what_was_made_since(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has torch already may have models, too."""
    import ladecli.session  # noqa: F401  (and torch with it)

    frozen = gc.get_freeze_count()
    launch._import_all()
    assert gc.get_freeze_count() == frozen
    monkeypatch.delitem(sys.modules, "torch")
    launch._import_all()
    assert gc.get_freeze_count() > frozen
