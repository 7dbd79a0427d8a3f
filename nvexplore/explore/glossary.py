"""The field's terms in one or two sentences each, as this engine does it. The only place where they are explained.

``%nvx_glossary`` tells them, and the views explain them where they occur: notebook/assets.py hands them to the page.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import NamedTuple

MAX_TEXT = 300
"""Characters of an explanation: it is read beside what it explains."""
# Term, and after bars other spellings that mean it where a view uses them; a plural s is understood.
_TEXTS = {
    # What runs.
    "waiting | waiting queue": (
        "In the waiting queue: a request without any block. It is admitted once there are one of the max_num_seqs "
        "places, some token budget, and free blocks for all of its tokens but those it shares with a running request."
    ),
    "running | resident": (
        "Admitted and holding blocks. A running (or resident) request need not have a row in every batch: under "
        "prefill_first decode rows stand still while prompts run."
    ),
    "admission | admitted | admit": (
        "The decision that takes a request out of the waiting queue: which cached blocks it shares, which new ones it "
        "gets, and how many of its tokens run now. It takes the blocks for all of its tokens at once."
    ),
    "max_num_seqs | places of running sequences | waits for a place | places": (
        "The most requests that may hold blocks at the same time. Each running one has a place until it ends or is "
        "preempted."
    ),
    "token budget | budget | max_num_batched_tokens": (
        "The most tokens that one step runs: max_num_batched_tokens. A decode row takes one, prompts fill it in "
        "chunks, and what is left of it is unused."
    ),
    "batch | row | decode row": (
        "All that one step runs: a row for each sequence, and the tokens of all rows one after another in one flat "
        "array, with no gaps between them."
    ),
    "prefill": (
        "Computing a prompt's tokens, many in one step, so that their keys and values lie in the KV cache. What came "
        "from the prefix cache is not computed again."
    ),
    "chunked prefill | chunk | last chunk | prompt chunk": (
        "A prompt that is longer than what is left of the token budget is computed in chunks, over several steps. "
        "Only its last chunk yields a token."
    ),
    "decode": (
        "One token a step: a row computes its newest token, stores the key and value of it, and yields the next one."
    ),
    "preemption | preempted": (
        "A decoding request needs a block and none is free: a request gives up all of its blocks and waits again with "
        "the tokens it has. By default that is the one admitted last of those with the worst priority."
    ),
    "recompute | computed again": (
        "Computing again what a preemption threw away. The request is admitted as if all its tokens were a prompt; "
        "blocks of it that are still cached are hit. What it says does not change."
    ),
    "finished | aborted": (
        "Ended, and its blocks are freed: stop (a stop token or string came), length (max_tokens are there), or error "
        "(no token could be chosen). An aborted request was ended from outside."
    ),
    # Where tokens go.
    "KV cache | KV pool | pool | key and value | keys and values": (
        "The keys and values of all tokens computed so far, kept so that no token is read twice: one pool of blocks, "
        "of a fixed size, for all sequences."
    ),
    "block | KV block | physical block | block_id": (
        "The unit in which the KV cache is handed out: room for block_size tokens. Its number is the physical one, "
        "its place in the pool."
    ),
    "logical block | logical": (
        "A block by its place in a sequence, position // block_size. Which physical block that is, is said by the "
        "block table."
    ),
    "block table | block_table | block_tables": (
        "The physical blocks of a sequence in the order of its tokens. A batch carries one row of block_tables for "
        "each sequence, -1 where a row needs no more blocks."
    ),
    "slot": (
        "The place of one token's key and value in the pool: block_table[position // block_size] * block_size + "
        "position % block_size."
    ),
    "slot_mapping": ("The slot of each token that a step runs, in the order of the batch. -1: it is not stored."),
    "position": ("A token's place in its sequence, from 0; the rotary embedding turns queries and keys by it."),
    "input_ids": (
        "The ids of all tokens that a step runs, row after row. Where steps overlap, ids that the step before has "
        "just drawn are filled in on the device."
    ),
    "cu_seqlens_q": (
        "Where each row begins among the tokens of the batch, and their number at the end: cumulative counts. q "
        "stands for queries, the tokens that this step runs."
    ),
    "cu_seqlens_k": (
        "The same as cu_seqlens_q over the contexts: cumulative context_lens. k stands for keys, all the tokens that "
        "a row looks at."
    ),
    "context_lens": (
        "How many tokens each row looks at: all up to its last one in this step, those from the prefix cache "
        "included. 0 for padding."
    ),
    "paged attention | arrays of the batch": (
        "Attention over keys and values that lie in blocks anywhere in the pool; the block table says where. These "
        "arrays are all that its kernels are told of a batch."
    ),
    "padding (-1) | padding": (
        "What fills a batch up to the size of a CUDA graph. It stands for nothing: token 0, context 0, block and slot "
        "-1, and what comes out of it is dropped."
    ),
    # Memory.
    "ref count": ("How many sequences hold a block. When the last one lets go, the block joins the free list."),
    "used | in use": (
        "Of a block: held. A view that tells shared blocks apart calls used what exactly one sequence holds."
    ),
    "shared": ("Held by several sequences that begin alike. A shared block is full, and nobody writes into it again."),
    "free list | free | free block": (
        "The blocks that nobody holds; the one freed longest ago is taken first by default. Cached ones are among "
        "them: a view that tells those apart calls free what holds nothing to be hit."
    ),
    "fragmentation | internal fragmentation | longest run that nobody holds": (
        "Internal fragmentation: slots that are held and empty, since the last block of a sequence is rarely full. "
        "There is no other: any free block is as good as its neighbour."
    ),
    "num_blocks | memory of the device | memory ledger": (
        "The size of the pool in blocks: num_kvcache_blocks where it was given. Else as many as fit into what weights "
        "and the largest step leave of a GPU's memory, and on a CPU into 1 GiB at most."
    ),
    "largest step": (
        "What the largest prefill and the largest decode step took on top of the weights, measured once on a GPU "
        "before the pool was sized."
    ),
    "rank | tensor parallelism": (
        "One of the processes that share a model: each has a part of every layer, and its own KV heads of every "
        "block. Rank 0 decides, draws and tells the others, so blocks and slots are the same on all."
    ),
    # The prefix cache.
    "prefix cache | prefix caching": (
        "Full blocks can be found by their tokens and all tokens before them. A prompt that begins the same shares "
        "them and computes only the rest."
    ),
    "cached | only cached": (
        "Can be hit. A cached block that nobody holds is on the free list too, and keeps its content until it is "
        "needed for something else. Cached tokens of a request are those it did not compute."
    ),
    "prefix hit | hit": (
        "A cached block that a request shares when it is admitted. Hits are whole blocks from its first token on, and "
        "at least one token is left to run."
    ),
    "hash chain | hash | content hash | not hashed": (
        "A full block is named by a hash of its tokens and of the name of the block before it: the same tokens behind "
        "another beginning have another name. A hit compares the tokens too."
    ),
    "eviction | evicted | forgotten": (
        "Forgetting what is cached in a free block, since the block is needed. First goes the one freed longest ago, "
        "of one sequence its tail before its head; the option eviction may say otherwise."
    ),
    "salt | salted": (
        "Requests share blocks only with requests of the same cache_salt. Without one they share with all others that "
        "have none."
    ),
    # Speed.
    "CUDA graph | graph": (
        "The kernels of a step, recorded once for one size and launched as one. A step with fewer rows is padded to "
        "the next size. A CPU has none."
    ),
    "graph miss | eager | without a CUDA graph": (
        "A step whose kernels were launched one by one although the engine has CUDA graphs; the record says why. "
        "Stopping at graph-miss heeds only steps of decode rows."
    ),
    "planned ahead | overlap": (
        "Steps overlap: this one was planned while the one before it was being computed. Its plan knows everything "
        "but the newest tokens, which reach the host a step late. Where times are added up, what two of them share "
        "counts once."
    ),
    "throughput": (
        "Tokens a second, those of all requests together. Decode tokens are what users get; prefill tokens are what "
        "the engine reads for it."
    ),
    "TTFT | first token | time to first token": (
        "Time to first token: from the arrival of a request to its first token, the time that it waits included."
    ),
    "inter-token latency | between tokens": (
        "The time from one token of a request to its next. Larger batches make it longer, and so do prompts that run "
        "in between and preemption."
    ),
}


class Term(NamedTuple):
    """A term, what it means, and other spellings of it."""

    name: str
    text: str
    also: tuple[str, ...]


def _terms() -> dict[str, Term]:
    names = {key: key.split(" | ") for key in _TEXTS}
    return {name: Term(name, _TEXTS[key], tuple(also)) for key, (name, *also) in names.items()}


GLOSSARY = _terms()
"""The terms by name."""
_SPELLINGS = {word.casefold(): term for term in GLOSSARY.values() for word in (term.name, *term.also)}


class UnknownTermError(ValueError):
    """A term that the glossary does not have."""


def define(term: str) -> Term:
    """The entry of a term: in any spelling of its own, with a plural s, and with - or _ for a space.

    UnknownTermError names the nearest one there is.
    """
    words = " ".join(term.split()).casefold()
    spaced = words.replace("-", " ").replace("_", " ")
    for found in (words, spaced, spaced.replace(" ", "_"), words.replace("_", " ")):
        for spelling in (found, found.removesuffix("s")):
            if spelling in _SPELLINGS:
                return _SPELLINGS[spelling]
    near = get_close_matches(words, _SPELLINGS, 1)
    if not near:
        raise UnknownTermError(f"the glossary has no {term!r}: it knows {', '.join(GLOSSARY)}")
    raise UnknownTermError(f"the glossary has no {term!r}, did you mean {_SPELLINGS[near[0]].name!r}?")
