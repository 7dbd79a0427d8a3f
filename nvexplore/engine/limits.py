"""The numbers the engine decides by. Knows neither devices nor models; ``EngineConfig`` works them out."""

from __future__ import annotations

from dataclasses import dataclass, fields

from nvexplore.checks import check_int, check_text
from nvexplore.engine.eviction import Eviction, make_eviction
from nvexplore.engine.hashing import HASH_FUNCTIONS
from nvexplore.engine.policy import Policy, make_policy

LARGEST_INT = 2**63 - 1
"""Whatever a caller gives is at most so large: records, hashes and tensors have no room for more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Every limit and choice the scheduler and the block manager obey; the numbers become plain ints, all >= 1.

    num_blocks:             physical KV blocks in the pool.
    block_size:             tokens a block.
    max_num_seqs:           resident sequences (those that hold blocks) at most.
    max_num_batched_tokens: tokens a step at most (the token budget).
    max_model_len:          prompt + completion tokens of one request at most.
    policy, eviction:       names, or objects of one's own (see ``policy`` and ``eviction``).
    prefix_hash:            "xxhash", or "sha256" where prompts come from those who would like them to collide.
    """

    num_blocks: int
    block_size: int = 16
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    max_model_len: int = 4096
    enable_prefix_caching: bool = True
    policy: str | Policy = "prefill_first"
    prefix_hash: str = "xxhash"
    eviction: str | Eviction = "lru"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "policy":
                make_policy(value)
            elif field.name == "eviction":
                make_eviction(value)
            elif field.name == "prefix_hash":
                value = check_text(field.name, value)
                if value not in HASH_FUNCTIONS:
                    raise ValueError(f"prefix_hash={value!r}: must be one of {', '.join(map(repr, HASH_FUNCTIONS))}")
                object.__setattr__(self, field.name, value)
            elif field.name == "enable_prefix_caching":
                if not isinstance(value, bool):
                    raise TypeError(f"enable_prefix_caching={value!r}: must be True or False")
            else:
                object.__setattr__(self, field.name, check_int(field.name, value, minimum=1, maximum=LARGEST_INT))

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold ``num_tokens`` tokens."""
        return -(-num_tokens // self.block_size)
