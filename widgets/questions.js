// What is asked of Python beside the messages: each thing once, and while the engine runs not too often. Knows no DOM.

const EVERY = 250, // milliseconds between two questions of one name about the newest state
  BUDGET = 40, // while the engine runs, answers about it take Python no more than one part in so many of the time
  SPACE = 100, // and come no more often than each so many milliseconds, of all names together: Feed counts on it
  REMEMBERED = 64;

export class Questions {
  /** isRunning(): whether the engine makes steps by itself, so that time that Python spends on answers slows it down. */
  constructor(host, isRunning = () => false) {
    this.host = host;
    this.isRunning = isRunning;
    this.restsUntil = 0; // for what the last answers cost, of all names together
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
      if (at > now) await this._wait(at - now);
      // In small parts: a run that ends is asked about at once.
      for (let left; this.isRunning() && (left = this.restsUntil - this.host.now()) > 0; )
        await this._wait(Math.min(left, EVERY));
    }
    const told = await this.host.ask(name, id, step);
    if (step < 0) {
      const rest = Math.max(SPACE, (told?.ms ?? 0) * BUDGET);
      this.restsUntil = Math.max(this.restsUntil, this.host.now()) + rest;
    }
    return told;
  }

  _wait(ms) {
    return new Promise((go) => this.host.later(go, ms));
  }
}
