"""The cached prefixes of one moment as a tree, in which a chain of blocks without branches is one run."""

from __future__ import annotations

from dataclasses import dataclass, field

from nvexplore.explore.contents import Contents
from nvexplore.explore.prefixes import Filled
from nvexplore.explore.state import State


@dataclass(slots=True)
class Run:
    """Blocks that follow each other in the tree. parent: place of the run they follow in the list of runs, or -1.

    num_below:      blocks in it and in all runs behind it.
    is_cut:         what stood before it, or before a run that it follows, has been evicted: nothing can hit it.
    num_hidden_runs, num_hidden_blocks: of those behind it that ``largest`` has left out.
    """

    blocks: list[int]
    parent: int
    depth: int
    first: Filled
    is_cut: bool = False
    num_below: int = 0
    num_hidden_runs: int = 0
    num_hidden_blocks: int = 0


@dataclass(slots=True)
class PrefixTree:
    """runs: each after the one it follows. num_unknown: cached blocks whose content is not known."""

    runs: list[Run] = field(default_factory=list)
    num_cached: int = 0
    num_unknown: int = 0
    num_hidden_runs: int = 0
    num_hidden_blocks: int = 0


def prefix_tree(state: State, contents: Contents) -> PrefixTree:
    """All that is cached in ``state``; takes time in proportion to the pool."""
    cached = contents.cached(state)
    num_cached = sum(hash_ is not None for hash_ in state.hash)
    block_of = {filled.node: block for block, filled in cached.items()}
    behind: dict[int, list[int]] = {}
    roots: list[tuple[int, bool]] = []
    for block, filled in cached.items():
        before = filled.node.parent
        parent = None if before is None else block_of.get(before)
        if parent is None:
            roots.append((block, before is not None))
        elif cached[parent].number != filled.before:
            roots.append((block, True))  # it follows an entry that was evicted, and this one has come in its place
        else:
            behind.setdefault(parent, []).append(block)
    tree = PrefixTree(num_cached=num_cached, num_unknown=num_cached - len(cached))
    todo = [(block, -1, is_cut) for block, is_cut in roots]
    while todo:
        block, parent_run, is_cut = todo.pop()
        run = Run([block], parent_run, cached[block].node.depth, cached[block], is_cut)
        place = len(tree.runs)
        tree.runs.append(run)
        followers = behind.get(block, ())
        while len(followers) == 1:
            run.blocks.append(followers[0])
            followers = behind.get(followers[0], ())
        todo += [(follower, place, is_cut) for follower in followers]
    for run in reversed(tree.runs):
        run.num_below += len(run.blocks)
        if run.parent >= 0:
            tree.runs[run.parent].num_below += run.num_below
    return tree


def largest(tree: PrefixTree, most: int) -> PrefixTree:
    """The tree with its ``most`` largest runs (by what is in and behind them), oldest first among their siblings."""
    runs = tree.runs
    # A run has less behind it than the one it follows, so that one is always among those that are kept.
    kept = set(sorted(range(len(runs)), key=lambda place: -runs[place].num_below)[:most])
    small = PrefixTree(num_cached=tree.num_cached, num_unknown=tree.num_unknown)
    children: dict[int, list[int]] = {}
    for place in kept:
        children.setdefault(runs[place].parent, []).append(place)
    hidden: dict[int, tuple[int, int]] = {}
    above: list[int] = []  # of each run the nearest kept one: itself, or one that it follows
    for place, run in enumerate(runs):
        above.append(place if place in kept else above[run.parent] if run.parent >= 0 else -1)
        if place not in kept:
            num_runs, num_blocks = hidden.get(above[place], (0, 0))
            hidden[above[place]] = num_runs + 1, num_blocks + len(run.blocks)
    small.num_hidden_runs, small.num_hidden_blocks = hidden.get(-1, (0, 0))
    todo = [(place, -1) for place in _oldest_last(children.get(-1, []), runs)]
    while todo:
        place, parent = todo.pop()
        run = runs[place]
        num_runs, num_blocks = hidden.get(place, (0, 0))
        behind = [(child, len(small.runs)) for child in _oldest_last(children.get(place, []), runs)]
        small.runs.append(
            Run(run.blocks, parent, run.depth, run.first, run.is_cut, run.num_below, num_runs, num_blocks)
        )
        todo += behind
    return small


def _oldest_last(places: list[int], runs: list[Run]) -> list[int]:
    return sorted(places, key=lambda place: -runs[place].first.number)
