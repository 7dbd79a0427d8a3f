"""The toy KV oracle as a state machine: hypothesis looks for a sequence of calls that breaks the engine."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from nvexplore.engine.engine import Engine
from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.engine.sequence import Sequence
from nvexplore.explore.state import State
from nvexplore.sampling_params import SamplingParams
from tests.fakes import ToyRunner, check_invariants, free_run, toy_engine
from tests.faults import Faults, Injected
from tests.toy_device import ToyDevice
from tests.workloads import OwnEviction, OwnPolicy

EOS = frozenset(range(0, 997, 20))
STOPS = (frozenset[int](), frozenset(range(7, 997, 12)))


class EngineMachine(RuleBasedStateMachine):
    """Requests come and go, steps run or are cut off; outputs, invariants and the folded records must hold."""

    requests: Bundle[Sequence] = Bundle("requests")

    @initialize(
        block_size=st.integers(1, 4),
        num_blocks=st.integers(6, 14),
        budget=st.integers(1, 9),
        max_num_seqs=st.integers(1, 5),
        caching=st.booleans(),
        policy=st.sampled_from(["prefill_first", "mixed", "own"]),
        eviction=st.sampled_from(["lru", "lfu", "own"]),
        prefix_hash=st.sampled_from(["xxhash", "sha256"]),
        has_eos=st.booleans(),
        overlap=st.booleans(),
        seed=st.integers(0, 9),
    )
    def start(
        self,
        block_size: int,
        num_blocks: int,
        budget: int,
        max_num_seqs: int,
        caching: bool,
        policy: str,
        eviction: str,
        prefix_hash: str,
        has_eos: bool,
        overlap: bool,
        seed: int,
    ) -> None:
        self.cut: tuple[str, type[BaseException]] | None = None
        self.num_left = 0
        self.eos = EOS if has_eos else frozenset()
        self.engine: Engine = toy_engine(
            num_blocks,
            block_size,
            eos=self.eos,
            interrupt=self.interrupt,
            make_runner=ToyDevice if overlap else ToyRunner,
            overlap=overlap,
            max_num_batched_tokens=budget,
            max_num_seqs=max_num_seqs,
            enable_prefix_caching=caching,
            policy=OwnPolicy(seed, Faults()) if policy == "own" else policy,
            eviction=OwnEviction(seed, Faults(), num_blocks) if eviction == "own" else eviction,
            prefix_hash=prefix_hash,
        )
        self.capacity = num_blocks * block_size
        self.started: list[Sequence] = []
        self.state: State | None = None
        self.engine.subscribe(self.watch)

    def interrupt(self, stage: str) -> None:
        if self.cut is not None and self.cut[0] == stage:
            self.num_left -= 1
            if not self.num_left:
                error, self.cut = self.cut[1], None
                raise error

    def watch(self, item: Snapshot | StepRecord) -> None:
        if isinstance(item, Snapshot):
            self.state = State(item)
        else:
            assert self.state is not None
            self.state.apply(item)

    @rule(
        target=requests,
        prompt=st.lists(st.integers(0, 2), min_size=1, max_size=12),
        max_tokens=st.integers(1, 8),
        min_tokens=st.integers(0, 8),
        stops=st.sampled_from(STOPS),
        ignore_eos=st.booleans(),
        n=st.sampled_from([1, 1, 2, 3]),
        salt=st.sampled_from([None, "\x01", "a"]),
        priority=st.integers(-1, 1),
    )
    def add(
        self,
        prompt: list[int],
        max_tokens: int,
        min_tokens: int,
        stops: frozenset[int],
        ignore_eos: bool,
        n: int,
        salt: str | None,
        priority: int,
    ) -> Sequence:
        prompt = prompt[: max(1, self.capacity - max_tokens)]
        max_tokens = min(max_tokens, self.capacity - len(prompt) + 1)
        params = SamplingParams(
            max_tokens=max_tokens,
            min_tokens=min(min_tokens, max_tokens),
            stop_token_ids=stops,
            ignore_eos=ignore_eos,
            n=n,
            cache_salt=salt,
        )
        first = self.engine.add_request(prompt, params, priority=priority)
        self.started += first.samples
        return first

    @rule(first=consumes(requests))
    def abort(self, first: Sequence) -> None:
        is_alive = any(seq.finish_reason is None for seq in first.samples)
        assert self.engine.abort(first.request_id) is is_alive
        assert all(seq.is_finished for seq in first.samples)

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.engine.step()
            check_invariants(self.engine)
            assert self.state is not None
            assert self.state.snapshot().same_state(self.engine.snapshot())

    @rule(count=st.integers(1, 6))
    def advance(self, count: int) -> None:
        """Where steps overlap, the next one is left in the air."""
        for _ in range(count):
            self.engine.advance()

    @rule(
        stage=st.sampled_from(["begin", "write", "end"]),
        error=st.sampled_from([KeyboardInterrupt, Injected]),
        advances=st.booleans(),
        nth=st.integers(1, 3),
    )
    @precondition(lambda self: self.engine.has_unfinished)
    def cut_off_step(self, stage: str, error: type[BaseException], advances: bool, nth: int) -> None:
        """In taking off or in landing, where both are done; what is in the air may have landed before."""
        self.cut, self.num_left = (stage, error), nth
        tokens = [list(seq.token_ids) for seq in self.started]
        try:
            (self.engine.advance if advances else self.engine.step)()
        except (KeyboardInterrupt, Injected):
            now = [list(seq.token_ids) for seq in self.started]
            assert all(after[: len(before)] == before for before, after in zip(tokens, now, strict=True))
            assert tokens == now or isinstance(self.engine.runner, ToyDevice)
        self.cut = None

    @rule()
    def plan(self) -> None:
        before = self.engine.snapshot()
        self.engine.plan()
        assert self.engine.snapshot().same_state(before)

    @rule()
    def reset_prefix_cache(self) -> None:
        self.engine.reset_prefix_cache()

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "engine") and not self.engine._steps.flights:
            self.engine.snapshot()  # lets the engine mend what an interrupt left
            check_invariants(self.engine)

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        while self.engine.has_unfinished:
            self.engine.advance()
        self.engine.step()  # which tells what no step has told yet
        check_invariants(self.engine)
        assert self.state is not None
        assert self.state.snapshot().same_state(self.engine.snapshot())
        for seq in self.started:
            expected, reason = free_run(
                seq.prompt_token_ids, seq.sampling_params, self.eos, sample_index=seq.sample_index
            )
            got = seq.completion_token_ids
            if seq.finish_reason == "abort":
                assert got == expected[: len(got)]
            else:
                assert (got, seq.finish_reason) == (expected, reason)


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=110, stateful_step_count=40, deadline=None)
