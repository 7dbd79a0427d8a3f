// What the views read: one state, the live one or a past one, and what the selection lights up in it. Knows no DOM.

import { EngineState } from "./state.js";
import { unpackToken } from "./wire.js";

export class Shown {
  constructor() {
    this.live = this.shown = new EngineState();
    this.selection = { kind: "none", id: -1 };
  }

  get isLive() {
    return this.shown === this.live;
  }

  /** The last step of the state that is shown; -1: nothing has run. */
  get shownStep() {
    return this.shown.step - 1;
  }

  /** The newest step; -1: nothing has run. */
  get liveStep() {
    return this.live.step - 1;
  }

  /** The first step that can be looked at. */
  get oldestStep() {
    return this.live.oldest >= 0 ? this.live.oldest : (this.live.columns[0]?.step ?? 0);
  }

  /** One a step, oldest first: the newest that are kept, or, of a step before those, the ones around it. */
  get columns() {
    return this.shown.columns.length ? this.shown.columns : this.live.columns;
  }

  set columns(columns) {
    this.live.columns = columns;
  }

  /** All sequences that are known, those too that came after the step that is shown; each as it is now. */
  get everyone() {
    return this.isLive ? this.live.sequences : new Map([...this.shown.sequences, ...this.live.sequences]);
  }

  /** What an answer about the shown state holds for: a new one may be had when this has changed. */
  get moment() {
    const { run, event } = this.live;
    return this.isLive ? `${run} event ${event}` : `${run} step ${this.shownStep}`;
  }

  owners(block) {
    return this.shown.owners(block);
  }

  fills(from, to) {
    return this.shown.fills(from, to);
  }

  countBlocks() {
    return this.shown.countBlocks();
  }

  /** Ids of the sequences that the selection lights up. */
  litSequences() {
    const { kind, id } = this.selection;
    if (kind === "sequence") return new Set([id]);
    if (kind === "token") return new Set([unpackToken(id)[0]]);
    return new Set(kind === "block" ? this.owners(id).map(([seq]) => seq.id) : []);
  }

  /** Blocks that the selection lights up, with their logical index (-1: selected itself). */
  litBlocks() {
    const { kind, id } = this.selection;
    if (kind === "block") return new Map([[id, -1]]);
    if (kind === "token") {
      const [seqId, position] = unpackToken(id),
        index = Math.floor(position / this.blockSize),
        block = this.sequences.get(seqId)?.table[index];
      return new Map(block === undefined ? [] : [[block, index]]);
    }
    const table = kind === "sequence" ? (this.sequences.get(id)?.table ?? []) : [];
    return new Map(table.map((block, index) => [block, index]));
  }
}

// The fields of the shown state are fields here; to set one is to set the live one's.
for (const name of [
  ...["run", "step", "event", "time", "blockSize", "numBlocks", "maxNumSeqs", "maxNumBatchedTokens", "maxSteps"],
  ...["words", "written", "sequences", "waiting", "running"],
])
  Object.defineProperty(Shown.prototype, name, {
    get() {
      return this.shown[name];
    },
    set(value) {
      this.live[name] = value;
    },
  });
