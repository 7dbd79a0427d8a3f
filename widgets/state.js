// What one engine looks like at one moment, as plain data: read from a frame, advanced by deltas. Knows no DOM.
//
// The newest state and a past one are the same kind of thing, made by the same code.

import { ADMITTED, HEAD, PREEMPTED, ROW, STATUS, blockState, copyAs } from "./wire.js";

const CHANGES_KEPT = 64;

export class EngineState {
  constructor() {
    this.run = this.seq = -1;
    this.step = this.event = this.time = 0;
    this.blockSize = this.numBlocks = this.maxNumSeqs = this.maxNumBatchedTokens = 0;
    this.maxSteps = 512;
    this.oldest = -1; // the first step that can be looked at; -1: nobody said
    this.words = new Uint16Array(0);
    this._counted = null; // how many blocks are in each state, and of which words
    this.changes = []; // {seq, blocks}: whose words the last deltas changed
    this.changesFrom = -1; // the message after which all changes are in that list
    this.written = new Uint32Array(0); // blocks that the last step wrote
    this.sequences = new Map(); // seq_id -> sequence, live ones and the last that ended
    this.waiting = [];
    this.running = [];
    this.columns = []; // one a step, oldest first
  }

  /** The state that a frame tells. before: the one it follows, whose columns may reach further back. */
  static read(m, before = null) {
    const state = new EngineState();
    state.run = m.run;
    state.blockSize = m.block_size;
    state.numBlocks = m.num_blocks;
    state.maxNumSeqs = m.max_num_seqs;
    state.maxNumBatchedTokens = m.max_num_batched_tokens;
    state.maxSteps = m.max_steps;
    state.words = copyAs(Uint16Array, m.words);
    state._tell(m);
    const old = before?.columns ?? [],
      first = m.steps ? copyAs(Int32Array, m.steps)[0] : undefined;
    if (old.length && (first === undefined || old[old.length - 1].step + 1 >= first)) {
      state.columns = old; // the frame goes on where the columns that are here end
      for (const [id, seq] of state.sequences) seq.moves = before.sequences.get(id)?.moves ?? seq.moves;
    }
    state._addColumns(m);
    state.changesFrom = m.seq;
    return state;
  }

  /** Take in what a delta tells; false, and nothing done, if it builds on something that is not here. */
  advance(m) {
    if (!this._tell(m)) return false;
    const words = copyAs(Uint16Array, m.words);
    if (m.block_ids) this._change(copyAs(Uint32Array, m.block_ids), words);
    else if (words.length === this.numBlocks) [this.words, this.changes, this.changesFrom] = [words, [], m.seq];
    this._addColumns(m);
    return true;
  }

  _change(blocks, words) {
    this.changes.push({ seq: this.seq, blocks });
    if (this.changes.length > CHANGES_KEPT) this.changesFrom = this.changes.shift().seq;
    const counts = this._counted?.words === this.words ? this._counted.counts : null;
    for (let i = 0; i < blocks.length; i++) {
      if (counts) {
        counts[blockState(this.words[blocks[i]])]--;
        counts[blockState(words[i])]++;
      }
      this.words[blocks[i]] = words[i];
    }
  }

  /** Lists of the blocks whose words have changed since message `seq`; null if that is not known any more. */
  changedSince(seq) {
    if (seq < this.changesFrom) return null;
    return this.changes.filter((change) => change.seq > seq).map(({ blocks }) => blocks);
  }

  /** What frames and deltas have in common; false if a block table builds on one that is not here. */
  _tell(m) {
    const rows = copyAs(Int32Array, m.rows),
      tables = copyAs(Uint32Array, m.tables),
      names = new Map(m.names);
    for (let at = 0; at < rows.length; at += ROW) {
      const id = rows[at],
        keep = rows[at + 9];
      if (!names.has(id) && !this.sequences.has(id)) return false;
      if (keep > (this.sequences.get(id)?.table.length ?? 0)) return false;
    }
    for (let at = 0, t = 0; at < rows.length; at += ROW) {
      const [id, status, numPrompt, numTokens, numCached, numComputed, numPreemptions, born, ended, keep, grown] =
        rows.subarray(at, at + ROW);
      const seq = this.sequences.get(id) ?? { id, name: names.get(id), table: [], moves: [] };
      Object.assign(seq, { status: STATUS[status], numPrompt, numTokens, numCached, numComputed, numPreemptions });
      Object.assign(seq, { born, ended, isLive: status < 3 });
      seq.table.length = keep;
      for (let i = 0; i < grown; i++) seq.table.push(tables[t++]);
      this.sequences.set(id, seq);
    }
    for (const id of m.gone ?? []) this.sequences.delete(id);
    if (m.written) this.written = copyAs(Uint32Array, m.written);
    if (m.waiting) this.waiting = Array.from(copyAs(Uint32Array, m.waiting));
    if (m.running) this.running = Array.from(copyAs(Uint32Array, m.running));
    this.oldest = m.oldest ?? this.oldest;
    this.seq = m.seq;
    this.step = m.step;
    this.event = m.event;
    this.time = m.time;
    return true;
  }

  _addColumns(m) {
    const heads = copyAs(Int32Array, m.steps),
      entries = copyAs(Int32Array, m.entries);
    let newest = this.columns.length ? this.columns[this.columns.length - 1].step : -1;
    for (let at = 0, e = 0; at < heads.length; at += HEAD) {
      const [step, prefill, recompute, decode, budget, free, running, waiting, us, ms, flags, n] = heads.subarray(
        at,
        at + HEAD,
      );
      const part = (k) => entries.subarray(e + k * n, e + (k + 1) * n);
      const column = { step, prefill, recompute, decode, budget, free, running, waiting, us, ms, flags };
      Object.assign(column, { seqs: part(0), kinds: part(1), starts: part(2), counts: part(3) });
      e += 4 * n;
      if (step <= newest) continue;
      newest = step;
      this.columns.push(column);
      if (step < this.step) this._move(column);
    }
    if (this.columns.length > this.maxSteps) this.columns.splice(0, this.columns.length - this.maxSteps);
  }

  /** Note who left the waiting queue and who came back to it in a step. */
  _move(column, sequences = this.sequences) {
    for (let i = 0; i < column.seqs.length; i++) {
      const kind = column.kinds[i];
      if (kind & ADMITTED) sequences.get(column.seqs[i])?.moves.push([column.step, false]);
      else if ((kind & 15) === PREEMPTED) sequences.get(column.seqs[i])?.moves.push([column.step, true]);
    }
  }

  /** A past state learns what the newest one knows of the time before it: who had ended, and who had moved when. */
  learnFrom(live) {
    const unknown = new Map();
    for (const [id, seq] of this.sequences) {
      const known = live.sequences.get(id);
      if (this.columns.length) continue; // a frame from far back brings the columns around it, and so the moves
      if (known) seq.moves = known.moves.filter(([step]) => step < this.step);
      else unknown.set(id, seq);
    }
    for (const column of unknown.size ? live.columns : []) if (column.step < this.step) this._move(column, unknown);
    // What has ended does not change any more.
    for (const [id, seq] of live.sequences)
      if (!seq.isLive && seq.ended < this.step && !this.sequences.has(id)) this.sequences.set(id, seq);
  }

  /** Live sequences that hold a block, as [sequence, logical index]. */
  owners(block) {
    const found = [];
    if (!(this.words[block] >> 1)) return found;
    for (const seq of this.sequences.values()) {
      const index = seq.isLive ? seq.table.indexOf(block) : -1;
      if (index >= 0) found.push([seq, index]);
    }
    return found;
  }

  /** Tokens whose KV each block holds, for blocks `from` to `to` - 1. */
  fills(from = 0, to = this.numBlocks) {
    const fill = new Uint16Array(Math.max(0, to - from)),
      size = this.blockSize;
    for (let b = from; b < to; b++) if (this.words[b] & 1) fill[b - from] = size;
    for (const seq of this.sequences.values()) {
      if (!seq.isLive) continue;
      seq.table.forEach((b, i) => {
        if (b >= from && b < to) fill[b - from] = Math.max(fill[b - from], Math.min(size, seq.numComputed - i * size));
      });
    }
    return fill;
  }

  /** How many blocks are free, cached, used and shared: counted once, then kept up to date with what changes. */
  countBlocks() {
    const { words } = this;
    if (this._counted?.words !== words) {
      const counts = [0, 0, 0, 0];
      for (let block = 0; block < words.length; block++) counts[blockState(words[block])]++;
      this._counted = { words, counts };
    }
    return [...this._counted.counts];
  }
}
