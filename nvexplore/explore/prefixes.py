"""Prefixes as chains of full blocks, the entries of the cache that hold them, and how far each sequence has come."""

from __future__ import annotations

from typing import NamedTuple

UNKNOWN = "unknown"
"""In place of a salt, where the request came before it was recorded."""


class Node:
    """A full block's tokens after those of ``parent``.

    depth:  blocks before it.
    salt:   (its request's,), or UNKNOWN.
    newest: the number of the newest entry that holds it; -1 where none has.
    """

    __slots__ = ("depth", "newest", "parent", "salt", "token_ids")

    def __init__(self, parent: Node | None, token_ids: tuple[int, ...], salt: object) -> None:
        self.parent, self.token_ids, self.salt, self.newest = parent, token_ids, salt, -1
        self.depth: int = 0 if parent is None else parent.depth + 1

    def is_prefix_of(self, token_ids: list[int]) -> bool:
        """Whether ``token_ids`` begin with this prefix."""
        node: Node | None = self
        while node is not None:
            size = len(node.token_ids)
            if node.token_ids != tuple(token_ids[node.depth * size : (node.depth + 1) * size]):
                return False
            node = node.parent
        return True


class Filled(NamedTuple):
    """A block was entered into the cache: by which event, under which hash, with what, for whom, in which step.

    before: the number of the entry that it follows, or -1. It is hit only after that one: the same prefix, evicted and
    entered again, is another entry.
    """

    number: int
    hash: int
    node: Node
    seq_id: int
    step: int
    before: int


class Live:
    """A sequence while it lives.

    chain: the nodes of its first full blocks, as far as they are known. entries: for each the number of the entry that
    it shares, or is.
    """

    __slots__ = ("chain", "entries", "salt", "table", "token_ids")

    def __init__(self, token_ids: list[int], salt: object) -> None:
        self.token_ids, self.salt = token_ids, salt
        self.table: list[int] = []
        self.chain: list[Node] = []
        self.entries: list[int] = []

    def follow(self, node: Node, entry: int) -> None:
        self.chain.append(node)
        self.entries.append(entry)

    @property
    def last(self) -> tuple[Node | None, int]:
        return (self.chain[-1], self.entries[-1]) if self.chain else (None, -1)
