"""What blocks hold and how prefixes branch, learnt from records, against the engine's own prefix cache."""

from __future__ import annotations

import gc
import random
import weakref

import pytest

from nvexplore.engine.engine import Engine
from nvexplore.explore import contents as contents_module
from nvexplore.explore.contents import Contents, contents_of
from nvexplore.explore.frames import prefix_hits
from nvexplore.explore.prefix_tree import PrefixTree, largest, prefix_tree
from nvexplore.explore.prefixes import UNKNOWN, Filled, Node
from nvexplore.explore.recorder import Recorder
from tests.situations import Scene
from tests.test_explain_parts import random_scene, some_request
from tests.workloads import make_workload, run_workload


def prefix(node: Node | None) -> list[int]:
    """All tokens from the beginning to the end of a node's block."""
    return [] if node is None else [*prefix(node.parent), *node.token_ids]


def held_by(engine: Engine) -> dict[int, tuple[int, ...]]:
    """block -> its tokens, by the engine's cache."""
    return {block: held.token_ids for block, held in enumerate(engine.blocks.cache.content) if held is not None}


def is_hit(engine: Engine, node: Node) -> bool:
    """Whether a request that begins with this prefix, under its salt, would hit all of its blocks."""
    cache, tokens, size = engine.blocks.cache, prefix(node), engine.limits.block_size
    link = cache.root(node.salt[0])  # type: ignore[index]
    for start in range(0, len(tokens), size):
        block = cache.find(link, tokens[start : start + size])
        if block is None:
            return False
        link = cache.link(block)
    return True


def found(engine: Engine) -> set[int]:
    """The registered blocks that lookups reach: from the root of every salt through all tokens that the cache holds."""
    cache = engine.blocks.cache
    known = [held for held in cache.content if held is not None]
    reached: set[int] = set()
    links = [cache.root(held.parent if isinstance(held.parent, str) else None) for held in known if held.depth == 0]
    while links:
        link = links.pop()
        for held in known:
            block = cache.find(link, list(held.token_ids))
            if block is not None and block not in reached:
                reached.add(block)
                links.append(cache.link(block))
    return reached


def hittable(tree: PrefixTree) -> set[int]:
    return {block for run in tree.runs if not run.is_cut for block in run.blocks}


def tree_of(scene: Scene) -> PrefixTree:
    return prefix_tree(scene.recorder.state, contents_of(scene.recorder))


def shape(tree: PrefixTree) -> list[tuple[int, list[int]]]:
    return [(run.parent, run.blocks) for run in tree.runs]


@pytest.mark.parametrize("seed", range(16))
def test_random_runs_hold_what_the_cache_holds(seed: int) -> None:
    rng = random.Random(1000 + seed)
    scene, past = random_scene(rng), {}
    engine, recorder = scene.engine, scene.recorder
    for number in range(50):
        if number < 25 and rng.random() < 0.5:
            try:
                scene.play(some_request(rng, f"r{number}"))
            except ValueError:
                continue  # too long for the pool
        scene.play(">" if engine._steps._overlapping else ".")
        engine.settle()
        if recorder.last_step is None:
            continue
        known, state = contents_of(recorder), recorder.state
        cached = known.cached(state)
        assert {block: filled.node.token_ids for block, filled in cached.items()} == held_by(engine)
        assert all(filled.node.depth == engine.blocks.cache.depths[block] for block, filled in cached.items())
        hits = {block: known.num_hits(block, filled, state.event) for block, filled in cached.items()}
        assert all(hits[block] <= engine.blocks.num_hits[block] for block in hits)
        tree = prefix_tree(state, known)
        assert sorted(block for run in tree.runs for block in run.blocks) == sorted(cached)
        for run in tree.runs:
            if run.parent >= 0:
                before = tree.runs[run.parent]
                assert run.first.node.parent is cached[before.blocks[-1]].node and run.is_cut == before.is_cut
        past[recorder.last_step] = held_by(engine)
    for step, held in past.items():
        cached = contents_of(recorder).cached(recorder.state_at(step))
        assert {block: filled.node.token_ids for block, filled in cached.items()} == held


def test_what_the_tree_shows_is_what_would_be_hit() -> None:
    scene = Scene("a=0:13/1 . b=0:8,50:55/1@x . c=0:6,70:75/1 . d=0:13,20:30/1 .", num_blocks=32)
    for run in tree_of(scene).runs:
        assert is_hit(scene.engine, run.first.node)


def test_a_block_behind_an_entry_that_another_has_replaced_is_cut_off() -> None:
    """b computes what a has cached, and goes on from a's entry. That is evicted, and d enters the same prefix anew: a
    lookup that comes from d's entry does not find what b has entered after a's, though the tokens are the same."""
    scene = Scene("a=0:6/9 . b=0:6/9 .", num_blocks=8, max_num_batched_tokens=64)
    scene.play(".2 -a c=100:124/1 . d=~b/1 . .4")
    b = scene.engine.live["b"]
    entered = [scene.engine.blocks.cache.content[block] is not None for block in b.block_table]
    assert entered == [True, False, True], "its second block is a's, its third stands behind"
    tree = tree_of(scene)
    assert found(scene.engine) == hittable(tree) and b.block_table[2] not in found(scene.engine)
    cut = [run for run in tree.runs if run.is_cut]
    assert [run.blocks for run in cut if run.first.seq_id == b.seq_id] == [b.block_table[2:3]]
    assert prefix(cut[-1].first.node) == b.token_ids[:12]
    assert scene.play("e=~b/1 .").recorder.records[-1].planned.admitted.num_cached_tokens == [8]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", range(0, 40, 4))
def test_what_the_tree_calls_hittable_is_what_lookups_reach(seed: int, overlap: bool) -> None:
    """In every state of random runs, four for each seed, where everything is asked twice: twins say the same."""
    for number in range(seed, seed + 4):
        work, recorder = make_workload(number, overlap=overlap), Recorder()
        work.requests = [request for request in work.requests for _ in range(2)]
        work.engine.subscribe(recorder)

        def compare(engine: Engine, recorder: Recorder = recorder) -> None:
            if recorder.last_step is None:
                return
            tree = prefix_tree(recorder.state, contents_of(recorder))
            assert tree.num_unknown == 0
            assert hittable(tree) == found(engine)
            assert sum(len(run.blocks) for run in tree.runs) == len(engine.blocks.cache)

        run_workload(work, compare)


def test_chains_are_runs_and_branches_begin_new_ones() -> None:
    scene = Scene("a=0:17/1 . b=0:8,50:59/1 . c=0:8,70:75/1 . d=90:95/1 .", num_blocks=32)
    tree = largest(tree_of(scene), 200)
    assert shape(tree) == [(-1, [0, 1]), (0, [2, 3]), (0, [5, 6]), (0, [8]), (-1, [10])], "oldest first"
    assert [run.num_below for run in tree.runs] == [7, 2, 2, 1, 1]
    assert (tree.num_cached, tree.num_unknown, tree.num_hidden_runs) == (8, 0, 0)
    assert [run.depth for run in tree.runs] == [0, 2, 2, 2, 0]


def test_of_a_large_tree_the_largest_runs_stay_and_the_rest_is_counted() -> None:
    scene = Scene("a=0:17/1 . b=0:8,50:59/1 . c=0:8,70:75/1 . d=90:95/1 .", num_blocks=32)
    tree = largest(tree_of(scene), 2)
    assert shape(tree) == [(-1, [0, 1]), (0, [2, 3])] or shape(tree) == [(-1, [0, 1]), (0, [5, 6])]
    assert (tree.runs[0].num_hidden_runs, tree.runs[0].num_hidden_blocks) == (2, 3)
    assert (tree.num_hidden_runs, tree.num_hidden_blocks) == (1, 1)


def test_hits_are_counted_since_the_block_was_filled() -> None:
    scene, counts = Scene("a=0:9/1 . b=0:9/1 . c=0:13/1 ."), []
    known = contents_of(scene.recorder)
    for step in range(3):
        state = scene.recorder.state_at(step)
        cached = known.cached(state)
        counts.append([known.num_hits(block, cached[block], state.event) for block in (0, 1)])
    assert counts == [[0, 0], [1, 1], [2, 2]]


def test_salts_do_not_share_a_branch() -> None:
    scene = Scene("a=0:9/1 . b=0:9/1@x .")
    tree = largest(tree_of(scene), 9)
    assert [(run.parent, len(run.blocks), run.first.node.salt) for run in tree.runs] == [
        (-1, 2, (None,)),
        (-1, 2, ("x",)),
    ]


def test_the_same_tokens_in_a_second_block_do_not_break_the_chain() -> None:
    """Two samples that say the same: the second one's blocks are never entered, but what it says next chains on."""
    scene = Scene("a=0:6/9 . b=0:6/9 .6", num_blocks=32)
    scene.play(".9")
    tree = tree_of(scene)
    assert len(tree.runs) == 1 and not tree.runs[0].is_cut
    assert prefix(tree.runs[0].first.node) == list(range(4))


def test_what_was_cached_before_it_was_recorded_is_counted_as_unknown() -> None:
    scene = Scene("a=0:9/1 . b=20:29/9 .2 record .", num_blocks=16)
    tree = tree_of(scene)
    assert (tree.num_cached, tree.num_unknown) == (4, 2)
    assert [prefix(run.first.node) for run in tree.runs] == [[20, 21, 22, 23]]
    assert tree.runs[0].first.node.salt == UNKNOWN
    scene.play("c=20:29/1 .")
    assert len(tree_of(scene).runs) == 1, "who hits it goes on from it"


def test_what_happens_while_nobody_records_is_found_by_hashes() -> None:
    scene = Scene("a=0:9/1 . b=20:29/1 .", num_blocks=16)
    assert len(tree_of(scene).runs) == 2
    engine, recorder = scene.engine, scene.recorder
    engine._hub.subscriptions.clear()
    scene.play("c=40:49/1 . d=0:13/4 .")
    engine.subscribe(recorder)
    scene.play(".")
    assert recorder.gaps
    tree = largest(tree_of(scene), 9)
    assert [prefix(run.first.node)[0] for run in tree.runs] == [0, 20] and tree.num_unknown == 2
    assert len(tree.runs[0].blocks) == 3, "what d has put behind the blocks of a"


def test_old_contents_are_forgotten_with_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents_module, "FIRST_PRUNING", 8)
    scene = Scene("", num_blocks=6)
    scene.recorder = Recorder(8)
    scene.engine.subscribe(scene.recorder)
    for i in range(60):
        scene.play(f"r{i}={20 * i}:{20 * i + 14}/1 .")
        assert {b: f.node.token_ids for b, f in contents_of(scene.recorder).cached(scene.recorder.state).items()} == (
            held_by(scene.engine)
        )
    known = contents_of(scene.recorder)
    assert 0 < known._num_filled < 60 and len(known._nodes) < 60, "of 180 that were filled"
    first = scene.recorder.first_step
    assert first is not None
    assert len(known.cached(scene.recorder.state_at(first))) == 6 - 1


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_forgetting_hits_keeps_their_number(seed: int, overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with contents that never forget, in every kept step, of every block; and few are kept."""
    num_forgotten = 0
    for number in range(seed, 24, 4):
        work, recorder = make_workload(number, overlap=overlap), Recorder(16, snapshot_every=2)
        work.requests = [request for request in work.requests for _ in range(4)]
        work.engine.subscribe(recorder)
        whole, small = Contents(), Contents()

        def compare(
            engine: Engine, recorder: Recorder = recorder, whole: Contents = whole, small: Contents = small
        ) -> None:
            whole.follow(recorder)
            with monkeypatch.context() as patch:
                patch.setattr(contents_module, "FIRST_PRUNING", 4)
                small._prune_at = min(small._prune_at, 4)
                small.follow(recorder)
            for record in recorder.records[:: max(1, len(recorder) - 1)]:
                state = recorder.state_at(record.step)
                cached = whole.cached(state)
                assert small.cached(state).keys() == cached.keys()
                for block, filled in cached.items():
                    assert small.num_hits(block, filled, state.event) == whole.num_hits(block, filled, state.event)

        run_workload(work, compare)
        assert small._num_hits == sum(map(len, small._hits.values()))
        num_forgotten += whole._num_hits - small._num_hits
    assert num_forgotten > 20


def test_blocks_that_are_often_hit_and_never_filled_anew_take_no_more_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents_module, "FIRST_PRUNING", 8)
    scene = Scene("", num_blocks=16)
    scene.recorder = Recorder(8, snapshot_every=2)
    scene.engine.subscribe(scene.recorder)
    for i in range(60):
        scene.play(f"r{i}=0:21/1 .")
        known = contents_of(scene.recorder)
        assert known._num_hits == sum(map(len, known._hits.values())) <= 100
    state = scene.recorder.state
    assert [known.num_hits(block, filled, state.event) for block, filled in known.cached(state).items()] == [59] * 5


@pytest.mark.parametrize("overlap", [False, True])
def test_the_frame_of_admissions_names_who_filled_the_first_block_hit(overlap: bool) -> None:
    in_the_same_plan = 0
    for seed in range(40):
        work, recorder = make_workload(seed, overlap=overlap), Recorder()
        work.requests = [request for request in work.requests for _ in range(3)]
        work.engine.subscribe(recorder)
        run_workload(work)
        known = contents_of(recorder)
        admissions = {(row.step, row.seq_id): row for row in prefix_hits(recorder).itertuples()}
        for record in recorder:
            events, first = record.planned.blocks, dict[int, Filled | None]()
            for kind, block, seq_id, event in zip(
                events.kind, events.block_id, events.seq_id, events.number, strict=True
            ):
                if kind == "hit":
                    first.setdefault(seq_id, known.content(block, event))
            for seq_id in record.planned.admitted.seq_id:
                row, filled = admissions[record.step, seq_id], first.get(seq_id)
                assert (row.num_hit_blocks > 0) == (filled is not None)
                assert filled is None or row.first_owner == filled.seq_id
                in_the_same_plan += filled is not None and filled.step == record.step
    assert in_the_same_plan > 5


def test_a_block_filled_and_hit_in_one_plan_has_the_new_owner() -> None:
    """Whether another had filled it before, nobody had, or it was filled by the same plan for the first time."""
    scene = Scene("old=9,9,9,9,8,8,8,8,7/1 . mid=6:15/1 .", num_blocks=6, max_num_batched_tokens=64)
    scene.play("b=1:10/1 c=1:10/1 .")
    frame = prefix_hits(scene.recorder)
    names = dict(zip(frame["seq_id"], frame["request_id"], strict=True))
    assert frame["num_hit_blocks"].tolist() == [0, 0, 0, 2]
    assert names[frame["first_owner"].iloc[-1]] == "b"


def test_contents_go_with_their_recorder() -> None:
    recorder = Scene("a=0:9/1 .").recorder
    known = weakref.ref(contents_of(recorder))
    assert contents_of(recorder) is known()
    del recorder
    gc.collect()
    assert known() is None


def test_nothing_is_known_of_nothing() -> None:
    empty = Contents()
    empty.follow(Recorder())
    assert empty.content(0, 5) is None
    assert tree_of(Scene("")).runs == []
