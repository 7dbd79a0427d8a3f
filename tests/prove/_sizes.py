"""How large an object is: the length of each container that it leads to."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator


def sizes(root: object, name: str, but: tuple[str, ...] = ()) -> dict[str, int]:
    """The length of every container that ``root`` leads to, by the attributes that lead there; ``but`` these.

    Elements of a container are one place together: 3 sequences with 2 blocks each are 6 at ``...live[].block_table``.
    """
    found: Counter[str] = Counter()
    seen: set[int] = set()
    todo = deque([(name, root)])  # breadth first: the name of a place is its shortest
    while todo:
        path, item = todo.popleft()
        if id(item) in seen or path in but or isinstance(item, (type, str, bytes, int, float)):
            continue
        seen.add(id(item))
        if isinstance(item, dict):
            found[path] += len(item)
            todo += [(f"{path}[]", each) for pair in item.items() for each in pair]
        elif isinstance(item, (list, tuple, set, frozenset, deque)):
            found[path] += len(item)
            todo += [(f"{path}[]", each) for each in item]
        else:
            todo += [(f"{path}.{attribute}", value) for attribute, value in attributes(item)]
    return dict(found)


def attributes(item: object) -> Iterator[tuple[str, object]]:
    """What an object of ours holds, in its __dict__ or its __slots__."""
    if type(item).__module__.split(".")[0] in ("nvexplore", "tests"):
        yield from vars(item).items() if hasattr(item, "__dict__") else ()
        for kind in type(item).__mro__:
            for name in getattr(kind, "__slots__", ()):
                if not name.startswith("__") and hasattr(item, name):
                    yield name, getattr(item, name)
