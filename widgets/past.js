// States of past steps: asked of Python one at a time, the last few kept. Knows no DOM.

import { EngineState } from "./state.js";
import { VERSION } from "./wire.js";

const KEPT = 8,
  EVERY_STATE = 100; // milliseconds between two questions while a slider is dragged

export class PastStates {
  /** live(), wanted(): the newest state, the step to look at. came(state, step), failed(text, step): what was asked. */
  constructor(host, { live, wanted, came, failed }) {
    Object.assign(this, { host, live, wanted, came, failed });
    this.kept = new Map(); // step -> state, the one looked at last at the end
    this.isAsking = false;
    this.next = -Infinity; // the earliest time of the next question
  }

  /** The state after a step, if it is here. */
  get(step) {
    const state = this.kept.get(step);
    if (!state) return null;
    this.kept.delete(step);
    this.kept.set(step, state);
    return state;
  }

  /** The state after a step is not here, or the columns around it were at hand when it came and are gone since. */
  lacks(step) {
    const state = this.kept.get(step);
    return step >= 0 && (!state || (!state.isWhole && this._isFar(step)));
  }

  /** The live columns begin after the step: a frame brings those around it. */
  _isFar(step) {
    return step < (this.live().columns[0]?.step ?? -1);
  }

  clear() {
    this.kept.clear();
  }

  /** Ask for the step that is wanted. Until the answer comes the cursor may move on: only its last place counts. */
  async fetch() {
    if (this.isAsking) return;
    this.isAsking = true;
    const wait = this.next - this.host.now();
    if (wait > 0) await new Promise((go) => this.host.later(go, wait));
    const step = this.wanted();
    if (this.lacks(step)) await this._ask(step);
    this.isAsking = false;
    if (this.lacks(this.wanted())) this.fetch();
  }

  async _ask(step) {
    const { run } = this.live(),
      isFar = this._isFar(step);
    this.next = this.host.now() + EVERY_STATE;
    try {
      const told = await this.host.ask("frame", step, step);
      if (run === this.live().run) this._take(told, step, isFar);
    } catch (error) {
      this.failed(`step ${step} can't be shown: ${error}`, step);
    }
  }

  _take(told, step, isFar) {
    const problem = this._problem(told, step);
    const old = this.kept.get(step);
    if (problem && old) return void (old.isWhole = true); // what is here stays; there will be nothing better
    if (problem) return this.failed(problem, step);
    const state = EngineState.read(told);
    state.learnFrom(this.live());
    state.isWhole = isFar || state.columns.length > 0;
    this.kept.set(step, state);
    if (this.kept.size > KEPT) this.kept.delete(this.kept.keys().next().value);
    this.came(state, step);
  }

  /** Why an answer is not the state that was asked for; "" if it is. */
  _problem(told, step) {
    if (!told) return `step ${step} can't be shown: Python does not answer`;
    if (told.error) return told.error;
    if (told.version !== VERSION) return `step ${step} can't be shown: its message has another version`;
    return told.run === this.live().run && told.step === step + 1 ? "" : `step ${step} is of another engine`;
  }
}
