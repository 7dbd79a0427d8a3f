// The Explorer's store: what one engine looks like, now or at a past step. Knows no DOM, no widget and no colour.
//
// Python (nvexplore/notebook/messages.py) writes the messages, `receive` reads them. A message is an object of numbers
// and named buffers: a frame holds everything, a delta only what changed since the message before it. Values are
// absolute, so a delta that tells what a frame already told changes nothing. They all advance the live state; which
// state is shown, that one or a past one, depends on the cursor.

import { PastStates } from "./past.js";
import { silenceWords } from "./pulse.js";
import { Questions } from "./questions.js";
import { Shown } from "./shown.js";
import { EngineState } from "./state.js";
import { VERSION } from "./wire.js";

const HELD = 64,
  PATIENCE = 250,
  RETRY = 2000,
  TAKEN = 1000; // milliseconds after which a command that Python has taken shows in the status, or never

/** What a store asks of the world around it; a page without Python leaves all of it out. */
const NOBODY = {
  resync() {},
  select() {},
  command() {},
  stopAt() {},
  ask: async () => null,
  later: (call, ms) => setTimeout(call, ms),
  now: () => performance.now(),
};

export class Store extends Shown {
  constructor(host = {}) {
    super();
    this.host = { ...NOBODY, ...host };
    this.listeners = new Set();
    this.cursor = -1; // the step that is looked at, as it was right after it; -1: the newest, whatever comes
    this.notice = ""; // why a step could not be shown
    this.trouble = ""; // why what Python sends can't be read
    this.leftOut = ""; // what a saved notebook does not have, of the state that is shown
    this.kernel = ""; // why nothing is heard of it: "gone", "busy" or "silent" (pulse.js); "" while it answers
    this.unanswered = new Set(); // calls of those whose question got no answer, for when something is heard
    this.status = "";
    this.asked = ""; // a button that was pressed, until the status says so or Python that nothing came of it
    this.refused = ""; // why nothing came of it
    this.hasControls = false;
    this.events = {}; // what a run can be stopped at: event -> when that is
    this.breakpoints = []; // the events that do stop it
    this.gaps = 0;
    this.held = []; // deltas that came before the message they build on
    this.asking = false;
    this.questions = new Questions(this.host, () => this.status === "running");
    this.past = new PastStates(this.host, {
      live: () => this.live,
      wanted: () => this.cursor,
      came: (state, step) => (step === this.cursor || this.isLoading) && this._show(state),
      failed: (text, step) => step === this.cursor && this._giveUp(text),
    });
  }

  subscribe(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  changed() {
    if (this.asked && (this.status === "running") === (this.asked === "run")) this.asked = "";
    for (const listener of this.listeners) listener(this);
  }

  get seq() {
    return this.live.seq;
  }

  /** A past step is looked at. */
  get isPast() {
    return this.cursor >= 0;
  }

  /** What is shown is not yet the step at the cursor. */
  get isLoading() {
    return this.cursor >= 0 && (this.isLive || this.shownStep !== this.cursor);
  }

  /** No kernel answers any more. */
  get isGone() {
    return this.kernel === "gone";
  }

  /** What must be said above the views: what is shown is old, or not all there is. */
  get warnings() {
    const last = this.liveStep < 0 ? "nothing had run" : `this is the last state it sent, after step ${this.liveStep}`;
    return [silenceWords(this.kernel, last), this.trouble, this.leftOut].filter(Boolean);
  }

  /** Something came from Python: who got no answer may ask again. */
  hear() {
    const calls = [...this.unanswered];
    this.unanswered.clear();
    for (const call of calls) call();
  }

  /** A button was pressed. */
  press(command) {
    this.refused = "";
    if (command !== "step") this.asked = command;
    this.host.command(command);
    this.changed();
  }

  /** Python has taken a command; refused: why nothing came of it. */
  done({ command, refused }) {
    this.refused = refused || this.refused;
    if (refused && this.asked === command) this.asked = "";
    if (this.asked === command) this.host.later(() => this._forget(command), TAKEN);
    this.changed();
  }

  _forget(command) {
    if (this.asked !== command) return;
    this.asked = "";
    this.changed();
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
    if (this.past.lacks(this.cursor)) this.past.fetch(); // the columns have moved away from it
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
    const { run, seq } = this.live;
    if (m.run < run || (m.run === run && m.seq < seq)) return "stale";
    const wasLive = this.isLive;
    this.live = EngineState.read(m, m.run === run ? this.live : null);
    this.leftOut = m.left_out ?? "";
    if (wasLive || m.run !== run) this.shown = this.live;
    if (m.run !== run) this._otherRun(run < 0);
    return "frame";
  }

  _delta(m) {
    const { run, seq } = this.live;
    if (m.run < run || (m.run === run && m.seq <= seq)) return "stale";
    if (m.run !== run || m.seq !== seq + 1) return "gap";
    return this.live.advance(m) ? "delta" : "gap";
  }

  /** What was kept of the past was another engine's; a cursor that was there before any engine means this one. */
  _otherRun(isFirst) {
    this.past.clear();
    if (this.cursor < 0) return;
    if (isFirst) this._seek();
    else {
      this.cursor = -1;
      this.host.select(this.selection, this.cursor);
    }
  }

  /** A promise of Python's answer to a view's question about the step that is shown; null if none comes. */
  ask(name, id) {
    return this.questions.ask(name, id, this.isLive ? -1 : this.shownStep, this.moment);
  }

  /** Select a sequence, block or token here, in the other views and in Python; the same again selects nothing. */
  select(kind, id, { toggle = true } = {}) {
    const same = kind === this.selection.kind && id === this.selection.id;
    if (same && !toggle) return;
    this.selection = same || kind === "none" ? { kind: "none", id: -1 } : { kind, id };
    this.host.select(this.selection, this.cursor);
    this.changed();
  }

  /** Look at the state right after a step; -1 follows the newest. The engine is not touched. */
  lookAt(step) {
    if (!this._move(step)) return;
    this.host.select(this.selection, this.cursor);
    this.changed();
  }

  /** Python has set the cursor. */
  follow(step) {
    if (this._move(step)) this.changed();
  }

  _move(step) {
    const cursor = Number.isInteger(step) && step >= 0 ? step : -1;
    if (cursor === this.cursor) return false;
    this.cursor = cursor;
    this.notice = "";
    this._seek();
    return true;
  }

  _seek() {
    const kept = this.cursor < 0 ? this.live : this.past.get(this.cursor);
    if (kept) this.shown = kept;
    if (this.live.run >= 0 && this.past.lacks(this.cursor)) this.past.fetch();
  }

  _show(state) {
    this.shown = state;
    this.changed();
  }

  /** The step that is looked at can't be had: say why, and go on with what is shown. */
  _giveUp(text) {
    this.notice = text;
    this.cursor = this.isLive ? -1 : this.shownStep;
    this.host.select(this.selection, this.cursor);
    this.changed();
  }
}
