"""Hashes of token prefixes, each chained to that of the prefix before it. Knows no blocks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from struct import Struct

import xxhash

HashFunction = Callable[[int, list[int]], int]


@lru_cache(maxsize=64)  # not more: salts have any length, and whoever asks chooses them
def _packer(num_tokens: int) -> Callable[..., bytes]:
    """Packs a parent's hash and so many token ids."""
    return Struct(f"<Q{num_tokens}q").pack


def chain_hash(parent_hash: int, token_ids: list[int]) -> int:
    """xxhash64 of the parent's hash and the ids; the same in every process."""
    return xxhash.xxh64_intdigest(_packer(len(token_ids))(parent_hash, *token_ids))


def sha256_hash(parent_hash: int, token_ids: list[int]) -> int:
    """The first 64 bits of SHA-256 of the parent's hash and the ids: nobody can choose prompts that collide."""
    digest = hashlib.sha256(_packer(len(token_ids))(parent_hash, *token_ids)).digest()
    return int.from_bytes(digest[:8], "little")


HASH_FUNCTIONS: dict[str, HashFunction] = {"xxhash": chain_hash, "sha256": sha256_hash}
