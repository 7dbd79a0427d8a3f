"""Public bug reports about schedulers, block managers and prefix caches, each as the small input that shows it.

The ids are this project's own numbering; each docstring names the public thread it comes from.
"""

import pytest

from nvexplore.engine.engine import Engine
from nvexplore.engine.sequence import Sequence
from nvexplore.sampling_params import SamplingParams
from tests.fakes import ToyRunner, check_invariants, run_to_end, toy_engine, unconstrained


def add(engine: Engine, prompt: list[int], max_tokens: int) -> Sequence:
    return engine.add_request(prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True))


def finish(engine: Engine, prompt: list[int], max_tokens: int) -> Sequence:
    """Run one request to its end and look at its output and at the pool."""
    seq = add(engine, prompt, max_tokens)
    run_to_end(engine)
    assert seq.completion_token_ids == unconstrained(prompt, max_tokens)
    check_invariants(engine)
    return seq


@pytest.mark.parametrize(("prompt", "max_tokens", "needed"), [(8, 2, 3), (9, 1, 3), (1, 9, 3), (40, 1, 10)])
def test_n01_request_larger_than_the_pool_is_refused(prompt: int, max_tokens: int, needed: int) -> None:
    """nano-vllm#274: a sequence outgrows the pool, is preempted, and a bare assert ends the engine."""
    engine = toy_engine(2, 4)
    with pytest.raises(ValueError, match=rf"needs {needed} KV blocks .* num_blocks=2"):
        add(engine, list(range(prompt)), max_tokens)
    assert not engine.has_unfinished
    finish(engine, list(range(8)), 1)  # 8 tokens stored: exactly the pool
    finish(engine, list(range(4)), 5)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("length", [4, 8, 12])
def test_n03_fully_cached_prompt_runs_at_least_one_token(together: bool, length: int) -> None:
    """nano-vllm#114: a prompt of whole cached blocks leaves zero query tokens."""
    engine, prompt = toy_engine(16, 4), list(range(length))
    first = add(engine, prompt, 3)
    if not together:
        run_to_end(engine)
    second = add(engine, prompt, 3)
    run_to_end(engine)
    assert first.completion_token_ids == second.completion_token_ids == unconstrained(prompt, 3)
    # Whole blocks, at most length - 1 tokens; blocks that the same step writes can be shared already.
    assert second.num_cached_tokens == length - 4


@pytest.mark.parametrize("num_blocks", [4, 5, 64])
def test_n05_a_repeated_prefill_yields_exactly_one_token(num_blocks: int) -> None:
    """nano-vllm PR#217: the token sampled by the prefill after a preemption was thrown away."""
    engine = toy_engine(num_blocks, 4)
    prompts = [list(range(1, 8)), list(range(11, 18))]
    seqs = [add(engine, prompt, 6) for prompt in prompts]
    while engine.has_unfinished:
        output = engine.step()
        assert len(output.seq_ids) == len(set(output.seq_ids)) == len(output.token_ids)
    assert [s.completion_token_ids for s in seqs] == [unconstrained(p, 6) for p in prompts]
    assert sum(s.num_preemptions for s in seqs) == (0 if num_blocks == 64 else 1)


@pytest.mark.parametrize("shared", [4, 8])
def test_n09_freed_but_intact_blocks_are_hits(shared: int) -> None:
    """nano-vllm PR#110: a freed block is valid until it is overwritten; not using it would cost every hit."""
    engine, stem = toy_engine(16, 4), list(range(shared))
    finish(engine, [*stem, 9], 2)
    free_before = len(engine.blocks.free)
    second = add(engine, [*stem, 10], 2)
    engine.step()
    assert second.num_cached_tokens == shared
    assert [engine.blocks.ref_count[b] for b in second.block_table] == [1] * (shared // 4 + 1)
    assert not set(second.block_table) & set(engine.blocks.free)
    assert len(engine.blocks.free) == free_before - shared // 4 - 1
    run_to_end(engine)
    assert second.completion_token_ids == unconstrained([*stem, 10], 2)


@pytest.mark.parametrize("block_size", [1, 2, 4])
def test_n11_a_new_block_exactly_when_the_tokens_exceed_the_table(block_size: int) -> None:
    """nano-vllm#30 and others, MinivLLM#75: the modulo that decides on a new block is off by one, or blind at 1."""
    engine = toy_engine(13, block_size)
    seq = add(engine, [5], 12)
    engine.step()
    for stored in range(1, 12):
        assert len(seq.block_table) == -(-stored // block_size)
        engine.step()
    assert seq.completion_token_ids == unconstrained([5], 12)


def test_n11_the_last_free_block_is_taken_by_another() -> None:
    """The same with the pool exhausted: the younger one gives way, the older one goes on."""
    engine = toy_engine(4, 4)
    older, younger = add(engine, [1] * 4, 10), add(engine, [2] * 4, 5)
    run_to_end(engine)
    assert older.num_preemptions == 0
    assert older.completion_token_ids == unconstrained([1] * 4, 10)
    assert younger.completion_token_ids == unconstrained([2] * 4, 5)


def test_n36_step_has_one_return_type_and_idle_ends() -> None:
    """MinivLLM PR#71: step() returns another number of values when nothing is scheduled."""
    engine = toy_engine(4, 4)
    idle = engine.step(want_record=True)
    assert (idle.seq_ids, idle.token_ids, idle.finished) == ([], [], [])
    assert idle.record is not None and idle.record.is_empty
    add(engine, [1], 1)
    busy = engine.step(want_record=True)
    assert type(busy) is type(idle) and busy.record is not None and not busy.record.is_empty
    assert engine.step().seq_ids == [] and engine.next_step == 1


def test_v01_the_chain_of_hashes_survives_full_prompt_hits() -> None:
    """vllm#3193, PR#11186: a full hit crashed, or left the last block unhashed and broke the chain."""
    engine, prompt = toy_engine(32, 4), list(range(12))
    cached = [finish(engine, prompt, 2).num_cached_tokens for _ in range(3)]
    assert cached == [0, 8, 8]
    # The last full block of the prompt is registered too: a longer prompt hits all three.
    assert finish(engine, [*prompt, 90, 91, 92, 93, 94], 2).num_cached_tokens == 12


@pytest.mark.parametrize("seed", range(200))
def test_v04_a_small_pool_changes_no_output(seed: int) -> None:
    """vllm#16832: output after a preemption is cut short or has doubled tokens."""
    from tests.workloads import make_workload, run_workload

    run_workload(make_workload(seed + 1_000_000))


@pytest.mark.parametrize("collide", [False, True])
def test_v05_an_evicted_block_is_never_served(collide: bool) -> None:
    """vllm PR#4761: a reused block keeps its entry in the hash table. Also with all hashes equal."""
    engine = toy_engine(4, 4)
    if collide:
        engine = Engine(engine.limits, ToyRunner(4, 4), hash_function=lambda parent, ids: 7)
    x, y = [1, 2, 3, 4, 5, 6, 7, 8, 9], list(range(20, 33))
    finish(engine, x, 1)
    finish(engine, y, 4)  # fills the pool
    assert finish(engine, x, 1).num_cached_tokens == 0


def test_v05_equal_ids_at_another_place_are_another_block() -> None:
    """The sibling: equal ids in both blocks and equal hashes; the second block must not hit the first."""
    limits = toy_engine(8, 4).limits
    engine = Engine(limits, ToyRunner(8, 4), hash_function=lambda parent, ids: 7)
    finish(engine, [1, 2, 3, 4, 9], 1)
    assert finish(engine, [1, 2, 3, 4, 1, 2, 3, 4, 9], 1).num_cached_tokens == 4


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "fits"), [(15, 1, True), (12, 4, True), (16, 1, False), (12, 8, False)]
)
def test_v17_the_length_limit_is_exact(prompt: int, max_tokens: int, fits: bool) -> None:
    """vllm PR#10730: off by one at max_model_len. The policy here: refuse at submission."""
    engine = toy_engine(4, 4, max_model_len=16)
    if not fits:
        with pytest.raises(ValueError, match=f"is {prompt + max_tokens}: must be at most max_model_len=16"):
            add(engine, list(range(prompt)), max_tokens)
        return
    seq = add(engine, list(range(prompt)), max_tokens)
    engine.step()
    assert len(seq.block_table) <= 4
    run_to_end(engine)
    assert seq.completion_token_ids == unconstrained(list(range(prompt)), max_tokens)


class TestV29Abort:
    """vllm#49118: an abort in some state loses blocks, leaks them, or is ignored."""

    @staticmethod
    def gone(engine: Engine, seq: Sequence) -> None:
        assert engine.abort(seq.request_id) is True
        assert seq.finish_reason == "abort" and not seq.block_table
        assert engine.abort(seq.request_id) is False
        check_invariants(engine)
        assert engine.step().finished.count(seq) == 1
        check_invariants(engine)

    def test_waiting(self) -> None:
        engine = toy_engine(8, 4)
        self.gone(engine, add(engine, [1, 2], 3))

    def test_waiting_after_a_preemption(self) -> None:
        engine = toy_engine(4, 4)
        older, younger = add(engine, [1] * 7, 6), add(engine, [2] * 7, 6)
        while not younger.num_preemptions:
            engine.step()
        self.gone(engine, younger)
        run_to_end(engine)
        assert older.completion_token_ids == unconstrained([1] * 7, 6)

    def test_half_prefilled(self) -> None:
        engine = toy_engine(8, 4, max_num_batched_tokens=3)
        seq = add(engine, list(range(10)), 3)
        engine.step()
        assert 0 < seq.num_computed_tokens < 10
        self.gone(engine, seq)

    def test_decoding(self) -> None:
        engine = toy_engine(8, 4)
        seq = add(engine, [1, 2], 5)
        engine.step()
        engine.step()
        self.gone(engine, seq)

    def test_already_finished(self) -> None:
        engine = toy_engine(8, 4)
        seq = add(engine, [1, 2], 1)
        assert engine.step().finished == [seq]
        assert engine.abort(seq.request_id) is False and seq.finish_reason == "length"

    def test_unknown(self) -> None:
        assert toy_engine(8, 4).abort("nobody") is False

    def test_shared_blocks_stay(self) -> None:
        engine, stem = toy_engine(16, 4), list(range(8))
        finish(engine, [*stem, 1], 1)
        one, other = add(engine, [*stem, 2], 4), add(engine, [*stem, 3], 4)
        engine.step()
        shared = one.block_table[:2]
        assert other.block_table[:2] == shared and [engine.blocks.ref_count[b] for b in shared] == [2, 2]
        self.gone(engine, one)
        assert [engine.blocks.ref_count[b] for b in shared] == [1, 1]
        run_to_end(engine)
        assert other.completion_token_ids == unconstrained([*stem, 3], 4)


def test_v39_tails_are_evicted_before_heads() -> None:
    """vllm PR#51482: freed blocks were reused head first, which cost the whole prefix."""
    engine = toy_engine(3, 4)
    finish(engine, list(range(12)), 1)
    finish(engine, [50, 51], 1)  # takes one block: must be the tail's
    assert finish(engine, list(range(12)), 1).num_cached_tokens == 8


def test_v39_least_recently_freed_goes_first_and_a_hit_refreshes() -> None:
    """Across requests: the oldest finished one is evicted first, unless it was hit since."""
    engine = toy_engine(4, 4)
    a, b = [1, 2, 3, 4, 5], [11, 12, 13, 14, 15]
    finish(engine, a, 1)
    finish(engine, b, 1)
    finish(engine, a, 1)  # refreshed: b is the oldest now
    finish(engine, [30] * 9, 1)  # takes three blocks
    assert finish(engine, a, 1).num_cached_tokens == 4
    assert finish(engine, b, 1).num_cached_tokens == 0


class Interrupted:
    """Raises KeyboardInterrupt when its stage comes up while armed."""

    def __init__(self) -> None:
        self.stage = ""

    def __call__(self, stage: str) -> None:
        if stage == self.stage:
            self.stage = ""
            raise KeyboardInterrupt


@pytest.mark.parametrize("stage", ["begin", "write", "end"])
@pytest.mark.parametrize("step", [0, 1, 4], ids=["first chunk", "second chunk", "decode"])
def test_j04_an_interrupted_step_leaves_nothing_behind(stage: str, step: int) -> None:
    """vllm#17738: after an interrupt the next call hangs, or gives wrong text, or the old requests' outputs."""
    interrupt = Interrupted()
    engine = toy_engine(16, 4, max_num_batched_tokens=6, interrupt=interrupt)
    old = add(engine, list(range(10)), 6)
    for _ in range(step):
        engine.step()
    before = engine.snapshot()
    interrupt.stage = stage
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert engine.snapshot().same_state(before)
    check_invariants(engine)
    engine.abort(old.request_id)
    new = finish(engine, [70, 71, 72], 5)
    assert new.num_cached_tokens == 0 and len(engine.blocks.free) == 16


def test_j04_what_a_failed_step_overwrote_is_never_served() -> None:
    """The sibling: the undone step had evicted a cached block and written into it."""
    interrupt = Interrupted()
    engine = toy_engine(3, 4, interrupt=interrupt)
    finish(engine, list(range(8)), 1)
    add(engine, [60] * 12, 1)  # needs all three blocks
    interrupt.stage = "end"
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert engine.abort("1")
    again = finish(engine, list(range(8)), 1)
    assert again.num_cached_tokens == 0
