"""The random bits that a token is drawn with. Knows no sampler.

Each sequence has a stream: a hash of the seed and of what names the sequence. A token's bits are the stream's at the
token's position (SplitMix64: a counter, mixed), so a step done again, or among other rows, draws the same.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from nvexplore.engine.sequence import Sequence

_WORD: Final = 0xFFFF_FFFF_FFFF_FFFF
_TWO_WORDS: Final = struct.Struct("<2Q").pack
_STEP: Final = np.uint64(0x9E37_79B9_7F4A_7C15)
_FIRST: Final = np.uint64(0xBF58_476D_1CE4_E5B9)
_SECOND: Final = np.uint64(0x94D0_49BB_1331_11EB)
_ONE, _27, _30, _31 = (np.uint64(number) for number in (1, 27, 30, 31))


def stream_of(seq: Sequence, engine_seed: int) -> int:
    """The stream of ``seq``, an unsigned 64-bit integer: from the request's own seed where it has one."""
    seed = seq.sampling_params.seed
    if seed is None:
        return stream(engine_seed, seq.seq_id)
    # Samples count down from -1, where no seq_id is.
    return stream(seed, -1 - seq.sample_index)


def stream(seed: int, name: int) -> int:
    return xxhash.xxh3_64_intdigest(_TWO_WORDS(seed & _WORD, name & _WORD))


def sample_keys(streams: npt.NDArray[np.uint64], positions: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """64 random bits, as signed integers, for the tokens at ``positions`` of ``streams``, element by element."""
    # Arithmetic modulo 2**64 is what is wanted, and arrays (unlike numpy's scalars) do not warn of it.
    bits = streams + (positions.astype(np.uint64) + _ONE) * _STEP
    bits = (bits ^ (bits >> _30)) * _FIRST
    bits = (bits ^ (bits >> _27)) * _SECOND
    bits ^= bits >> _31
    keys: npt.NDArray[np.int64] = bits.view(np.int64)
    return keys


def sample_key(seed: int, seq_id: int, position: int) -> int:
    """The bits for the token at ``position`` of sequence ``seq_id`` of an engine with ``seed``."""
    streams = np.array([stream(seed, seq_id)], np.uint64)
    return int(sample_keys(streams, np.array([position]))[0])
