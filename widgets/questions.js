// What is asked of Python beside the messages: each thing once, and while the engine runs not too often. Knows no DOM.

const EVERY = 250, // milliseconds between two questions of one name about the newest state
  REMEMBERED = 64;

export class Questions {
  constructor(host) {
    this.host = host;
    this.answers = new Map(); // what, about whom and when -> promise of the answer
    this.next = new Map(); // name -> the earliest time of its next question
  }

  /** A promise of the answer about a step (-1: the newest) as it was at `moment`; null if none comes. */
  ask(name, id, step, moment) {
    const key = `${name} ${id} ${moment}`;
    if (this.answers.has(key)) return this.answers.get(key);
    const answer = this._send(name, id, step).catch((error) => ({ error: String(error) }));
    this.answers.set(key, answer);
    if (this.answers.size > REMEMBERED) this.answers.delete(this.answers.keys().next().value);
    answer.then((told) => !told && this.answers.get(key) === answer && this.answers.delete(key)); // it may come later
    return answer;
  }

  async _send(name, id, step) {
    if (step < 0) {
      const now = this.host.now(),
        at = Math.max(now, this.next.get(name) ?? 0);
      this.next.set(name, at + EVERY);
      if (at > now) await new Promise((go) => this.host.later(go, at - now));
    }
    return this.host.ask(name, id, step);
  }
}
