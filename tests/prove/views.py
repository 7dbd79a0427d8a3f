"""What the views show is the fold: the newest step after every message, and any recorded step when it is looked at.

The store in node holds what the messages tell it, and asks Python for past steps. Compared by hash with a fold that
knows neither. Seeds below RUNS are random workloads, looked at from their first step to their last; the seeds after
them are large pools.
"""

import random
from contextlib import closing

from nvexplore.engine.engine import Engine
from nvexplore.explore.recorder import Recorder
from nvexplore.sampling_params import SamplingParams
from tests.fakes import toy_engine
from tests.prove import Figures, Proof, combine
from tests.store_process import StoreProcess
from tests.time_travel import Traveller
from tests.workloads import make_workload, overlaps, run_workload

RUNS = 500
POOLS = (20_000, 200_000, 1_000_000)


def run_one(seed: int, store: StoreProcess) -> Figures:
    """One workload. Now and then the past is looked at while it goes on, which must not disturb it."""
    rng = random.Random(f"views {seed}")
    work = make_workload(seed, overlap=overlaps(seed))
    recorder = Recorder(rng.choice([10_000, 10_000, 24]), snapshot_every=rng.choice([1, 7, 256]))
    steps, entries = rng.choice([512, 512, 10]), rng.choice([20_000, 40])
    traveller = Traveller(store, recorder, max_steps=steps, max_entries=entries, max_finished=rng.choice([256, 3]))
    waits = 0  # steps until the store goes back to the newest

    def compare(engine: Engine) -> None:
        nonlocal waits
        kept, newest = recorder.first_step, traveller.oracle.newest
        if waits:
            shown = store.call(lives=True)["shownStep"]
            assert traveller.deliver() == traveller.oracle.digests[shown], "the past has changed"
            waits -= 1
            if not waits:
                traveller.look_at(-1)
        elif kept is not None and rng.random() < 0.05:
            traveller.deliver()
            traveller.check_past(rng.randint(kept, newest))
            waits = rng.randint(1, 4)
        else:
            traveller.check_live()

    with work.engine.subscribe(traveller.push) as subscription:
        figures = run_workload(work, compare)
        assert subscription.error is None
    traveller.look_at(-1)
    traveller.check_live()
    newest = traveller.oracle.newest
    for step in [*range(newest + 1), *(rng.randint(0, newest) for _ in range(5))]:
        traveller.check_past(step)
    traveller.look_at(-1)
    traveller.check_live()
    return {"runs": 1, "steps": figures["steps"], **counts(traveller)}


def counts(traveller: Traveller) -> Figures:
    return {"looks": traveller.num_looks, "no_longer_kept": traveller.num_errors}


def run_pool(num_blocks: int, store: StoreProcess) -> Figures:
    """A few steps on a large pool."""
    engine = toy_engine(num_blocks, 16, max_num_batched_tokens=2048, max_num_seqs=64)
    traveller = Traveller(store, Recorder())
    with engine.subscribe(traveller.push):
        for i in range(40):
            engine.add_request([i % 7] * (400 + i), SamplingParams(max_tokens=20 + i, ignore_eos=True))
        while engine.has_unfinished:
            engine.step()
            if engine.next_step % 8 == 0:
                traveller.check_live()
    traveller.check_live()
    for step in range(0, engine.next_step, 6):
        traveller.check_past(step)
    return {"steps": engine.next_step, "max_blocks": num_blocks, **counts(traveller)}


def run_chunk(seeds: range) -> Figures:
    """See the module."""
    with closing(StoreProcess()) as store:
        return combine(run_one(seed, store) if seed < RUNS else run_pool(POOLS[seed - RUNS], store) for seed in seeds)


def check(figures: Figures) -> None:
    """Steps were looked at that a page has no columns of, and steps that had been dropped."""
    assert figures["no_longer_kept"] >= 1_000, figures  # type: ignore[operator]


PROOF = Proof(
    "views",
    "What is shown, now and of any recorded step, is the fold of the records",
    RUNS + len(POOLS),
    10,
    run_chunk,
    chunk=25,
    check=check,
    is_parallel=True,
)
