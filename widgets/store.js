// The Explorer's store: what one engine looks like, as plain data. Knows no DOM, no widget and no colour.
//
// Python (nvexplore/notebook/messages.py) writes the messages, `receive` reads them. A message is an object of numbers
// and named buffers: a frame holds everything, a delta only what changed since the message before it. Values are
// absolute, so a delta that tells what a frame already told changes nothing.

import { ADMITTED, HEAD, PREEMPTED, ROW, STATUS, VERSION, blockState, copyAs } from "./wire.js";

const HELD = 64,
  PATIENCE = 250,
  RETRY = 2000;

/** What a store asks of the world around it; a page without Python leaves all of it out. */
const NOBODY = {
  resync() {},
  select() {},
  command() {},
  ask: async () => null,
  later: (call, ms) => setTimeout(call, ms),
};

export class Store {
  constructor(host = {}) {
    this.host = { ...NOBODY, ...host };
    this.listeners = new Set();
    this.selection = { kind: "none", id: -1 };
    this.cursor = -1; // the step that is looked at; -1: the newest
    this.status = "";
    this.hasControls = false;
    this.seq = -1;
    this.gaps = 0;
    this.held = []; // deltas that came before the message they build on
    this.asking = false;
    this._clear();
  }

  _clear() {
    this.run = -1;
    this.step = this.event = this.time = 0;
    this.blockSize = this.numBlocks = this.maxNumSeqs = this.maxNumBatchedTokens = 0;
    this.maxSteps = 512;
    this.words = new Uint16Array(0);
    this.written = new Uint32Array(0); // blocks that the newest step wrote
    this.sequences = new Map(); // seq_id -> sequence, live ones and the last that ended
    this.waiting = [];
    this.running = [];
    this.columns = []; // one a step, oldest first
  }

  subscribe(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  changed() {
    for (const listener of this.listeners) listener(this);
  }

  /** Take a message in. One that came too early is kept; what stays missing is asked for, once at a time. */
  receive(message) {
    if (message.version !== VERSION) return "version";
    const verdict = message.full ? this._frame(message) : this._delta(message);
    if (verdict === "gap") {
      this.gaps += 1;
      if (this.held.length < HELD) this.held.push(message);
      this._askSoon(PATIENCE);
      return verdict;
    }
    this._releaseHeld();
    if (verdict !== "stale") this.changed();
    return verdict;
  }

  _releaseHeld() {
    this.held = this.held.filter((m) => m.seq > this.seq).sort((a, b) => a.seq - b.seq);
    while (this.held.length && this.held[0].seq === this.seq + 1) {
      if (this._delta(this.held[0]) === "gap") break;
      this.held.shift();
    }
  }

  /** Unless what is missing comes by itself, ask for a frame; again if none comes, but never twice at a time. */
  _askSoon(ms) {
    if (this.asking) return;
    this.asking = true;
    const missing = this.seq + 1;
    this.host.later(() => {
      this.asking = false;
      if (this.seq >= missing && !this.held.length) return;
      this.host.resync();
      this._askSoon(RETRY);
    }, ms);
  }

  _frame(m) {
    if (m.run < this.run || (m.run === this.run && m.seq < this.seq)) return "stale";
    const old = m.run === this.run ? this.columns : [];
    const known = this.sequences;
    this._clear();
    this.run = m.run;
    this.blockSize = m.block_size;
    this.numBlocks = m.num_blocks;
    this.maxNumSeqs = m.max_num_seqs;
    this.maxNumBatchedTokens = m.max_num_batched_tokens;
    this.maxSteps = m.max_steps;
    this.words = copyAs(Uint16Array, m.words);
    this._tell(m, new Map(m.names));
    const first = m.steps ? copyAs(Int32Array, m.steps)[0] : undefined;
    if (old.length && (first === undefined || old[old.length - 1].step + 1 >= first)) {
      this.columns = old; // the frame goes on where the columns that are here end
      for (const [id, seq] of this.sequences) seq.moves = known.get(id)?.moves ?? seq.moves;
    }
    this._addColumns(m);
    return "frame";
  }

  _delta(m) {
    if (m.run < this.run || (m.run === this.run && m.seq <= this.seq)) return "stale";
    if (m.run !== this.run || m.seq !== this.seq + 1) return "gap";
    if (!this._tell(m, new Map(m.names))) return "gap";
    const words = copyAs(Uint16Array, m.words);
    if (m.block_ids) copyAs(Uint32Array, m.block_ids).forEach((block, i) => (this.words[block] = words[i]));
    else if (words.length === this.numBlocks) this.words = words;
    this._addColumns(m);
    return "delta";
  }

  /** What frames and deltas have in common; false if a block table builds on one that is not here. */
  _tell(m, names) {
    const rows = copyAs(Int32Array, m.rows),
      tables = copyAs(Uint32Array, m.tables);
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
      const [step, prefill, recompute, decode, budget, free, running, waiting, us, ms, n] = heads.subarray(
        at,
        at + HEAD,
      );
      const part = (k) => entries.subarray(e + k * n, e + (k + 1) * n);
      const column = { step, prefill, recompute, decode, budget, free, running, waiting, us, ms };
      Object.assign(column, { seqs: part(0), kinds: part(1), starts: part(2), counts: part(3) });
      e += 4 * n;
      if (step <= newest) continue;
      newest = step;
      this.columns.push(column);
      this._move(column);
    }
    if (this.columns.length > this.maxSteps) this.columns.splice(0, this.columns.length - this.maxSteps);
  }

  /** Note who left the waiting queue and who came back to it in a step. */
  _move(column) {
    for (let i = 0; i < column.seqs.length; i++) {
      const kind = column.kinds[i];
      if (kind & ADMITTED) this.sequences.get(column.seqs[i])?.moves.push([column.step, false]);
      else if ((kind & 15) === PREEMPTED) this.sequences.get(column.seqs[i])?.moves.push([column.step, true]);
    }
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

  /** How many blocks are free, cached, used and shared. */
  countBlocks() {
    const count = [0, 0, 0, 0];
    for (const word of this.words) count[blockState(word)]++;
    return count;
  }

  /** Select a sequence or a block here, in the other views and in Python; the same again selects nothing. */
  select(kind, id, { toggle = true } = {}) {
    const same = kind === this.selection.kind && id === this.selection.id;
    if (same && !toggle) return;
    this.selection = same || kind === "none" ? { kind: "none", id: -1 } : { kind, id };
    this.host.select(this.selection, this.cursor);
    this.changed();
  }

  /** Look at one step; -1 follows the newest. */
  lookAt(step) {
    if (step === this.cursor) return;
    this.cursor = step;
    this.host.select(this.selection, this.cursor);
    this.changed();
  }

  /** Ids of the sequences that the selection lights up. */
  litSequences() {
    const { kind, id } = this.selection;
    if (kind === "sequence") return new Set([id]);
    return new Set(kind === "block" ? this.owners(id).map(([seq]) => seq.id) : []);
  }

  /** Blocks that the selection lights up, with their logical index (-1: selected itself). */
  litBlocks() {
    const { kind, id } = this.selection;
    if (kind === "block") return new Map([[id, -1]]);
    const table = kind === "sequence" ? (this.sequences.get(id)?.table ?? []) : [];
    return new Map(table.map((block, index) => [block, index]));
  }
}
