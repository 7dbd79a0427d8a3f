"""The undo log: whatever was logged is as before, in every order of interrupts; what is committed stays."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from nvexplore.engine.undo import UndoLog

State = dict[str, Any]


def state() -> State:
    return {"object": SimpleNamespace(x=1, y="y"), "items": [1, 2, 3], "mapping": {"a": 1}, "queue": deque([1])}


def set_attr(undo: UndoLog, s: State) -> Callable[[], object]:
    undo.attr(s["object"], "x")
    return lambda: setattr(s["object"], "x", 2)


def set_item(undo: UndoLog, s: State) -> Callable[[], object]:
    undo.item(s["items"], 1)
    return lambda: s["items"].__setitem__(1, 9)


def new_key(undo: UndoLog, s: State) -> Callable[[], object]:
    undo.key(s["mapping"], "b")
    return lambda: s["mapping"].update(b=2)


def other_value(undo: UndoLog, s: State) -> Callable[[], object]:
    undo.key(s["mapping"], "a")
    return lambda: s["mapping"].update(a=2)


def no_key(undo: UndoLog, s: State) -> Callable[[], object]:
    undo.key(s["mapping"], "a")
    return lambda: s["mapping"].pop("a")


def longer(undo: UndoLog, s: State) -> Callable[[], object]:
    undo.length(s["items"])
    return lambda: s["items"].extend([4, 5])


def one_more(undo: UndoLog, s: State) -> Callable[[], object]:
    item = object()
    undo.append(s["queue"], item)
    return lambda: s["queue"].append(item)


def in_a_list(undo: UndoLog, s: State) -> Callable[[], object]:
    item = object()
    undo.append(s["items"], item)
    return lambda: s["items"].append(item)


def called(undo: UndoLog, s: State) -> Callable[[], object]:
    undo.log((s["mapping"].__setitem__, "a", 1))
    return lambda: s["mapping"].clear()


def set_attrs(undo: UndoLog, s: State) -> Callable[[], object]:
    undo.attrs(s["object"], "x", "y")
    return lambda: vars(s["object"]).update(x=5, y=6)


def set_items(undo: UndoLog, s: State) -> Callable[[], object]:
    undo.items(s["items"], [2, 0])
    return lambda: s["items"].reverse()


CHANGES = [
    set_attr,
    set_attrs,
    set_item,
    set_items,
    new_key,
    other_value,
    no_key,
    longer,
    one_more,
    in_a_list,
    called,
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("is_made", [True, False])
def test_a_change_is_undone_and_one_that_was_only_announced_is_too(change: Any, is_made: bool) -> None:
    undo, s = UndoLog(), state()
    make = change(undo, s)
    if is_made:
        make()
        assert s != state()
    undo.rollback()
    assert s == state() and not undo


@pytest.mark.parametrize("change", CHANGES)
def test_a_committed_change_stays(change: Any) -> None:
    undo, s = UndoLog(), state()
    make = change(undo, s)
    assert undo
    make()
    undo.commit()
    assert not undo
    undo.rollback()
    assert s != state()


def test_the_newest_change_is_undone_first() -> None:
    undo, order = UndoLog(), []
    for number in range(3):
        undo.log((order.append, number))
    undo.rollback()
    assert order == [2, 1, 0]


def test_an_interrupted_rollback_goes_on_where_it_was() -> None:
    undo, calls, fails = UndoLog(), [], [True]

    def restore() -> None:
        calls.append("middle")
        if fails[0]:
            raise KeyboardInterrupt

    undo.log((calls.append, "first"))
    undo.log((restore,))
    undo.log((calls.append, "last"))
    with pytest.raises(KeyboardInterrupt):
        undo.rollback()
    assert undo and calls == ["last", "middle"]
    fails[0] = False
    undo.rollback()
    assert calls == ["last", "middle", "middle", "first"] and not undo


def test_only_the_very_item_is_taken_back() -> None:
    """Between the append and the undo somebody may have delivered it; an equal one behind it is not it."""
    undo, mine, other = UndoLog(), [1], [1]
    queue = deque([other])
    undo.append(queue, mine)
    undo.rollback()
    assert queue == deque([[1]]) and queue[0] is other
    empty: list[Any] = []
    undo.append(empty, mine)
    undo.rollback()
    assert empty == []
    several = [mine, other]
    undo.append(several, mine)
    undo.rollback()
    assert len(several) == 2
