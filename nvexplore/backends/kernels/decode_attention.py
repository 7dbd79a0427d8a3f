"""Attention of rows with one query token each over the paged pool.

One program takes the query heads of one row that share a KV head, and a part of the row's keys. Where rows are few,
long ones are split over several programs, of which the last to end puts their results together.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from nvexplore.backends.kernels.launch import (
    IS_INTERPRETED,
    await_kernel_before,
    check_queries,
    launch_options,
    power_of_2,
)

MAX_SPLITS = 16
_MOST = 12  # programs a processor from which on no row is split
_WHOLE = ((6, 16_384), (3, 2_048))  # and so many, where a context has at most so many tokens
_FEW = 792  # programs up to which a tile of 128 keys reads faster than one of 64
_LOG2_E = 1.4426950408889634


@triton.jit(do_not_specialize=["table_stride"])
def _decode_attention(
    q_ptr: tl.tensor,
    k_cache_ptr: tl.tensor,
    v_cache_ptr: tl.tensor,
    tables_ptr: tl.tensor,
    contexts_ptr: tl.tensor,
    rows_ptr: tl.tensor,
    tokens_ptr: tl.tensor,
    out_ptr: tl.tensor,
    part_ptr: tl.tensor,
    peak_ptr: tl.tensor,
    sum_ptr: tl.tensor,
    ended_ptr: tl.tensor,
    scale: tl.tensor,
    table_stride: tl.tensor,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_WIDTH: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KEYS: tl.constexpr,
    SPLITS: tl.constexpr,
    IS_WHOLE_BATCH: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDENS: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    await_kernel_before(EARLY)
    if SPLITS == 1:
        # A token's heads lie side by side in the pool: programs that read them at one time find its memory open.
        kv_head = tl.program_id(0)
        entry = tl.program_id(1)
    else:
        entry = tl.program_id(0)
        kv_head = tl.program_id(1)
    split = tl.program_id(2)
    row = entry
    token = entry
    if not IS_WHOLE_BATCH:
        row = tl.load(rows_ptr + entry)
        token = tl.load(tokens_ptr + entry)
    context = tl.load(contexts_ptr + row)
    parts = 1
    if SPLITS > 1:
        # Two tiles of keys are not worth another program.
        parts = tl.minimum(SPLITS, tl.maximum(tl.cdiv(context, 2 * KEYS), 1))
        if split >= parts:
            return
    share = tl.cdiv(tl.cdiv(context, parts), KEYS) * KEYS
    first = split * share
    end = tl.minimum(first + share, context)

    member = tl.arange(0, GROUP_WIDTH)
    at = tl.arange(0, WIDTH)
    is_query = (member < GROUP)[:, None] & (at < HEAD_DIM)[None, :]
    head = kv_head * GROUP + member
    q_at = (token.to(tl.int64) * (NUM_KV_HEADS * GROUP) + head[:, None]) * HEAD_DIM + at[None, :]
    q = tl.load(q_ptr + q_at, mask=is_query, other=0.0)
    if WIDENS:
        q = q.to(tl.float32)

    peak = tl.full([GROUP_WIDTH], -1e30, tl.float32)
    total = tl.zeros([GROUP_WIDTH], tl.float32)
    acc = tl.zeros([GROUP_WIDTH, WIDTH], tl.float32)
    table = tables_ptr + row.to(tl.int64) * table_stride
    for start in range(first, end, KEYS):
        position = start + tl.arange(0, KEYS)
        is_key = position < end
        block = tl.load(table + position // BLOCK_SIZE, mask=is_key, other=0).to(tl.int64)
        key_at = ((block * BLOCK_SIZE + position % BLOCK_SIZE) * NUM_KV_HEADS + kv_head) * HEAD_DIM
        is_value = is_key[:, None] & (at < HEAD_DIM)[None, :]
        # The pool may have fewer bits than the queries.
        k = tl.load(k_cache_ptr + key_at[:, None] + at[None, :], mask=is_value, other=0.0).to(q.dtype)
        v = tl.load(v_cache_ptr + key_at[:, None] + at[None, :], mask=is_value, other=0.0).to(q.dtype)
        score = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        score = tl.where(is_key[None, :], score, -1e30)
        new_peak = tl.maximum(peak, tl.max(score, axis=1) * scale)
        weight = tl.exp2(score * scale - new_peak[:, None])
        fade = tl.exp2(peak - new_peak)
        acc = acc * fade[:, None] + tl.dot(weight.to(v.dtype), v, input_precision=PRECISION)
        total = total * fade + tl.sum(weight, axis=1)
        peak = new_peak

    ended = parts - 1  # programs of this row that have ended before
    if parts > 1:
        head_at = (entry.to(tl.int64) * (NUM_KV_HEADS * GROUP) + head) * SPLITS
        is_head = member < GROUP
        tl.store(part_ptr + (head_at + split)[:, None] * HEAD_DIM + at[None, :], acc, mask=is_query)
        tl.store(peak_ptr + head_at + split, peak, mask=is_head)
        tl.store(sum_ptr + head_at + split, total, mask=is_head)
        tl.debug_barrier()  # what all threads have stored is there before one of them says so
        ended = tl.atomic_add(ended_ptr + entry * NUM_KV_HEADS + kv_head, 1)
        if ended == parts - 1:
            tl.store(ended_ptr + entry * NUM_KV_HEADS + kv_head, 0)  # for the next launch
            peak = tl.full([GROUP_WIDTH], -1e30, tl.float32)
            total = tl.zeros([GROUP_WIDTH], tl.float32)
            acc = tl.zeros([GROUP_WIDTH, WIDTH], tl.float32)
            for each in range(parts):  # in the same order whoever is last
                # Past the processor's own cache, which may hold what was there before another processor wrote.
                part_peak = tl.load(peak_ptr + head_at + each, mask=is_head, other=-1e30, cache_modifier=".cg")
                part_total = tl.load(sum_ptr + head_at + each, mask=is_head, other=0.0, cache_modifier=".cg")
                part_at = (head_at + each)[:, None] * HEAD_DIM + at[None, :]
                part = tl.load(part_ptr + part_at, mask=is_query, other=0.0, cache_modifier=".cg")
                new_peak = tl.maximum(peak, part_peak)
                fade = tl.exp2(peak - new_peak)
                weight = tl.exp2(part_peak - new_peak)
                acc = acc * fade[:, None] + part * weight[:, None]
                total = total * fade + part_total * weight
                peak = new_peak
    if ended == parts - 1:
        # A row of padding has no keys: 0 / 1.
        result = acc / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(out_ptr + q_at, result.to(out_ptr.dtype.element_ty), mask=is_query)


def num_splits(num_rows: int, num_kv_heads: int, num_processors: int, longest: int) -> int:
    """Programs among which each row's keys are split: a power of two. longest: the context that a row can have.

    Up to 4 where a processor would get fewer than 12: rows differ in length, and the longest should not be waited for.
    More only to give every processor two: then parts are short, and putting them together takes its time.
    No row is split where there are enough of them to fill the time that the longest can take.
    """
    programs = num_rows * num_kv_heads
    for least, most in _WHOLE:
        if programs >= least * num_processors and longest <= most:
            return 1
    splits = 1
    while splits < MAX_SPLITS and programs * splits < (_MOST if splits < 4 else 2) * num_processors:
        splits *= 2
    return splits


def most_split(num_processors: int) -> int:
    """Rows times KV heads, at most, whose keys are split."""
    return _MOST * num_processors


def decode_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    scale: float,
    *,
    splits: int = 1,
    rows: Tensor | None = None,
    tokens: Tensor | None = None,
    out: Tensor | None = None,
    ended: Tensor | None = None,
) -> Tensor:
    """q [T, num_heads, head_dim] -> like q. Row i's query is token i; a context of 0 gives zeros.

    k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim], contiguous, in the format of q or a narrower
    one. block_tables [N, widest] int32, context_lens [N] int32. splits: a power of two, see ``num_splits``.
    rows, tokens: [n] int32, which rows to attend for and where their queries are; without them all rows.
    out: where to write; tokens that belong to no row keep what it holds.
    ended: at least [n * num_kv_heads] int32, all 0 before and after, for splits > 1; not to be shared by two streams.
    """
    check_queries(q)
    num_heads, head_dim = q.shape[1:]
    block_size, num_kv_heads = k_cache.shape[1:3]
    group = num_heads // num_kv_heads
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    count = context_lens.shape[0] if rows is None else rows.shape[0]
    if not count:
        return out
    width = power_of_2(head_dim, 16)
    parts = peaks = sums = out
    if splits > 1:
        ended = torch.zeros(count * num_kv_heads, dtype=torch.int32, device=q.device) if ended is None else ended
        parts = torch.empty(count * num_heads * splits, head_dim, dtype=torch.float32, device=q.device)
        peaks, sums = torch.empty(2, count * num_heads * splits, dtype=torch.float32, device=q.device)
    whole = rows is None or tokens is None
    # Measured: large tiles where few programs read at once, but not short parts.
    most = 64 if splits > 4 or (splits == 1 and count * num_kv_heads >= _FEW) else 128
    most = 16 if IS_INTERPRETED else most
    keys = max(16, min(most, 32_768 // (width * q.dtype.itemsize)))
    grid = (num_kv_heads, count, 1) if splits == 1 else (count, num_kv_heads, splits)
    _decode_attention[grid](
        q, k_cache, v_cache, block_tables, context_lens,
        context_lens if rows is None else rows, context_lens if tokens is None else tokens, out, parts, peaks, sums,
        context_lens if ended is None else ended, scale * _LOG2_E, block_tables.stride(0),
        NUM_KV_HEADS=num_kv_heads, GROUP=group, GROUP_WIDTH=power_of_2(group, 16), HEAD_DIM=head_dim, WIDTH=width,
        BLOCK_SIZE=block_size, KEYS=keys, SPLITS=splits, IS_WHOLE_BATCH=whole,
        PRECISION="ieee", WIDENS=IS_INTERPRETED, num_warps=4, num_stages=3, **launch_options(),
    )  # fmt: skip
    return out
