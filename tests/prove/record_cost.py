"""Recording changes no token and costs little: at most 15 us a step at 8 sequences, 150 us at 256 with 10,000 waiting.

Seeds below TIMED compare tokens with and without a subscriber, and look that without one no record is built. The
seeds after them measure, so they belong to `make prove` only.
"""

import gc
import statistics
import time
from unittest import mock

from nvexplore.engine import engine as engine_module
from nvexplore.engine import steps as steps_module
from nvexplore.engine.batch import Dispatch, ScheduledBatch
from nvexplore.engine.engine import Engine
from nvexplore.engine.limits import EngineLimits
from nvexplore.sampling_params import SamplingParams
from tests.prove import Figures, Proof, combine, least
from tests.workloads import make_workload, overlaps, run_workload

TIMED = 20
CASES = [(8, 0, 15.0), (256, 10_000, 150.0)]  # running, waiting, limit in us
WARM_UP, STEPS, PAIRS = 32, 64, 80  # short and many: the machine's speed drifts, and other programs come and go


class InstantRunner:
    """Computes nothing, at once."""

    dispatched = Dispatch(eager_reason="fake")

    def run(self, batch: ScheduledBatch) -> list[int]:
        return [7] * sum(batch.samples)

    def dispatch(self, batch: ScheduledBatch) -> Dispatch:
        return self.dispatched


def busy_engine(running: int, waiting: int) -> Engine:
    """An engine that decodes ``running`` sequences while ``waiting`` more queue up behind them."""
    limits = EngineLimits(
        num_blocks=200_000, max_num_seqs=running, max_num_batched_tokens=16_384, max_model_len=100_000
    )
    engine = Engine(limits, InstantRunner())
    for i in range(running + waiting):
        engine.add_request([i] * 40, SamplingParams(max_tokens=50_000))
    while any(seq.status != "decode" for seq in engine.scheduler.queues.running) or not engine.scheduler.queues.running:
        engine.step()
    return engine


def step_us(engine: Engine) -> float:
    """Mean microseconds a step over STEPS steps: a mean, since block growth comes every 16th step only.

    Some steps go before, untimed: subscribing copies the whole pool once, which leaves the processor's caches cold.
    """
    for _ in range(WARM_UP):
        engine.step()
    begin = time.perf_counter_ns()
    for _ in range(STEPS):
        engine.step()
    return (time.perf_counter_ns() - begin) / STEPS / 1e3


def measure(running: int, waiting: int, limit: float) -> Figures:
    """Blocks of steps with and without a subscriber in turn; the median of the differences is the cost."""
    engine = busy_engine(running, waiting)
    plain: list[float] = []
    gc.collect()

    def cost() -> float:
        costs = []
        for _ in range(PAIRS):
            without = step_us(engine)
            with engine.subscribe(lambda item: None):
                costs.append(step_us(engine) - without)
            plain.append(without)
        return statistics.median(costs)

    return {
        f"max_us_a_step_at_{running}": round(least(cost, limit), 1),
        f"max_us_of_the_step_itself_at_{running}": round(statistics.median(plain), 1),
    }


def tokens_of(seed: int, record: bool) -> list[list[int]]:
    work = make_workload(seed, overlap=overlaps(seed))
    seqs = [seq for p, params in work.requests for seq in work.engine.add_request(p, params).samples]
    if record:
        work.engine.subscribe(lambda item: None)
    while work.engine.has_unfinished:
        work.engine.advance()
    return [seq.token_ids for seq in seqs]


def compare(seed: int) -> Figures:
    """Equal tokens; and with the record's builders removed, an engine without a subscriber does not miss them."""
    recorded = tokens_of(seed, record=True)
    with (
        mock.patch.multiple(steps_module, build_before=None, build_committed=None, StepRecord=None),
        mock.patch.object(engine_module, "PlanRecorder", return_value=None),
    ):
        assert tokens_of(seed, record=False) == recorded
        run_workload_without_plan(seed)
    return {"workloads": 1}


def run_workload_without_plan(seed: int) -> None:
    work = make_workload(seed, overlap=overlaps(seed))
    work.engine.plan = lambda: None  # type: ignore[assignment, method-assign, return-value]  # plan() does build
    run_workload(work)


def run_chunk(seeds: range) -> Figures:
    """See the module."""
    return combine(compare(seed) if seed < TIMED else measure(*CASES[seed - TIMED]) for seed in seeds)


PROOF = Proof("record_cost", "What a record costs", TIMED + len(CASES), TIMED, run_chunk, chunk=10)
