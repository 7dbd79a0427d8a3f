"""The numbers the engine decides by. Knows neither devices nor models; ``EngineConfig`` works them out."""

from __future__ import annotations

from dataclasses import dataclass, fields

from nvexplore.checks import check_int
from nvexplore.engine.policy import Policy, make_policy


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Every limit the scheduler and the block manager obey; each is a plain int, all >= 1.

    num_blocks:             physical KV blocks in the pool.
    block_size:             tokens a block.
    max_num_seqs:           resident sequences (those that hold blocks) at most.
    max_num_batched_tokens: tokens a step at most (the token budget).
    max_model_len:          prompt + completion tokens of one request at most.
    """

    num_blocks: int
    block_size: int = 16
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    max_model_len: int = 4096
    enable_prefix_caching: bool = True
    policy: str | Policy = "prefill_first"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "policy":
                make_policy(value)
            elif field.name == "enable_prefix_caching":
                if not isinstance(value, bool):
                    raise TypeError(f"enable_prefix_caching={value!r}: must be True or False")
            else:
                check_int(field.name, value, minimum=1)

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold ``num_tokens`` tokens."""
        return -(-num_tokens // self.block_size)
