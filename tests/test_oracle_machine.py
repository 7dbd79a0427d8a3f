"""The toy KV oracle as a state machine: hypothesis looks for a sequence of calls that breaks the engine."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from nvexplore.engine.engine import Engine
from nvexplore.engine.events import Snapshot, StepRecord
from nvexplore.engine.sequence import Sequence
from nvexplore.explore.state import State
from nvexplore.sampling_params import SamplingParams
from tests.fakes import check_invariants, run_to_end, toy_engine, unconstrained


class EngineMachine(RuleBasedStateMachine):
    """Requests come and go, steps run or are interrupted; outputs, invariants and the folded records must hold."""

    requests: Bundle[Sequence] = Bundle("requests")

    @initialize(
        block_size=st.integers(1, 4),
        num_blocks=st.integers(6, 14),
        budget=st.integers(1, 9),
        max_num_seqs=st.integers(1, 5),
        caching=st.booleans(),
    )
    def start(self, block_size: int, num_blocks: int, budget: int, max_num_seqs: int, caching: bool) -> None:
        self.interrupt_at = ""
        self.engine: Engine = toy_engine(
            num_blocks,
            block_size,
            interrupt=self.interrupt,
            max_num_batched_tokens=budget,
            max_num_seqs=max_num_seqs,
            enable_prefix_caching=caching,
        )
        self.capacity = num_blocks * block_size
        self.started: list[Sequence] = []
        self.state: State | None = None
        self.engine.subscribe(self.watch)

    def interrupt(self, stage: str) -> None:
        if stage == self.interrupt_at:
            self.interrupt_at = ""
            raise KeyboardInterrupt

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
    )
    def add(self, prompt: list[int], max_tokens: int) -> Sequence:
        prompt = prompt[: max(1, self.capacity - max_tokens)]
        max_tokens = min(max_tokens, self.capacity - len(prompt) + 1)
        seq = self.engine.add_request(prompt, SamplingParams(max_tokens=max_tokens))
        self.started.append(seq)
        return seq

    @rule(seq=consumes(requests))
    def abort(self, seq: Sequence) -> None:
        assert self.engine.abort(seq.request_id) is not (seq.finish_reason in ("stop", "length"))

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.engine.step()
            check_invariants(self.engine)
            assert self.state is not None
            assert self.state.snapshot().same_state(self.engine.snapshot())

    @rule(stage=st.sampled_from(["begin", "write", "end"]))
    @precondition(lambda self: self.engine.has_unfinished)
    def interrupted_step(self, stage: str) -> None:
        self.interrupt_at = stage
        tokens = [list(seq.token_ids) for seq in self.started]
        try:
            self.engine.step()
        except KeyboardInterrupt:
            assert tokens == [list(seq.token_ids) for seq in self.started]

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
        if hasattr(self, "engine"):
            self.engine.snapshot()  # lets the engine mend what an interrupt left
            check_invariants(self.engine)

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        run_to_end(self.engine)
        for seq in self.started:
            expected = unconstrained(seq.prompt_token_ids, seq.sampling_params.max_tokens)
            got = seq.completion_token_ids
            assert got == (expected[: len(got)] if seq.finish_reason == "abort" else expected)


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
