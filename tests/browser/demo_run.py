"""A run worth looking at: shared prefixes, chunked prefill, preemption, eviction, an abort, text that is hostile."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from nvexplore.engine.engine import Engine
from nvexplore.sampling_params import SamplingParams
from tests.fakes import toy_engine

VOCABULARY = """the a of to and in is it that was for on are with as his they at be this from have or by one had not but
what all were when we there can an your which their said if do will each about how up out them then she many some so
these would other into has more her two like him see time could no make than first been its who now people my made over
did down only way find use may water long little very after words called just where most know river bridge light"""
WORDS = VOCABULARY.split()
HOSTILE = "</script><img src=x onerror=alert(1)> ‮drawkcab‬ مرحبا 🦜"
SYSTEM = "You are a careful assistant. You answer in short and plain sentences, and you say so when you do not know."


def encode(text: str) -> list[int]:
    return [zlib.crc32(word.encode()) % 997 for word in text.split()]


TEXTS: dict[int, str] = {}


def decode(token_ids: list[int]) -> str:
    return " ".join(TEXTS.get(i, WORDS[i % len(WORDS)]) for i in token_ids)


def remember(text: str) -> list[int]:
    ids = encode(text)
    TEXTS.update(zip(ids, text.split(), strict=True))
    return ids


def demo_engine(num_blocks: int = 96, block_size: int = 16, budget: int = 128) -> Engine:
    return toy_engine(num_blocks, block_size, max_num_batched_tokens=budget, max_num_seqs=16)


def demo_steps(engine: Engine, steps: int = 60) -> Iterator[int]:
    """Step the engine, adding requests on the way; yields the number of steps made."""
    system = remember(SYSTEM) * 2
    arrivals = {
        0: [("haiku", 30, 60), ("translate", 70, 20)],
        2: [("summary", 300, 9), ("translate-2", 64, 16)],
        7: [("chat-1", 90, 40), ("chat-2", 40, 10)],
        11: [("long-essay", 460, 60), (HOSTILE, 30, 9)],
        16: [("report", 470, 40), ("chat-3", 60, 50)],
        24: [("chat-4", 62, 60), ("too-slow", 280, 90)],
    }
    for step in range(steps):
        for name, length, max_tokens in arrivals.get(step, []):
            body = remember(f"{name} " + " ".join(WORDS[(i * 7 + len(name)) % len(WORDS)] for i in range(length)))
            prompt = system + body if length < 200 else body
            params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
            engine.add_request(prompt, params, request_id=name)
        if step == 29:
            engine.abort("too-slow")
        engine.step()
        yield step + 1
