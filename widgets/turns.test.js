// The order in which views draw, and how much of a frame they take.

import assert from "node:assert/strict";
import test from "node:test";

import { Turns } from "./turns.js";

/** Turns with a clock and frames of its own; view(name, ms) draws for so long, and `drawn` has the names. */
function stage(budget = 12) {
  const drawn = [],
    frames = [];
  let time = 0;
  const timers = [];
  const later = (call, ms) => timers.push({ call, due: time + ms });
  const turns = new Turns({ budget, frame: (call) => frames.push(call), later, now: () => time });
  const view = (name, ms, more = {}) => ({
    root: { dataset: {} },
    isAway: () => false,
    draw() {
      drawn.push(name);
      time += ms;
    },
    ...more,
  });
  /** What one frame draws. */
  const next = () => {
    drawn.length = 0;
    for (const call of frames.splice(0)) call();
    return drawn.join("");
  };
  /** Let time go by; timers call when theirs is up. */
  const pass = (ms) => {
    time += ms;
    for (const one of timers.splice(0)) one.due <= time ? one.call() : timers.push(one);
  };
  return { turns, view, next, frames, pass, timers };
}

test("views draw in the order in which they asked, each once", () => {
  const { turns, view, next, frames } = stage();
  const [a, b, c] = ["a", "b", "c"].map((name) => view(name, 1));
  for (const each of [c, a, c, b, a]) turns.ask(each);
  assert.equal(frames.length, 1);
  assert.equal(next(), "cab");
  assert.equal(frames.length, 0);
});

test("a frame ends within its budget, and what is left over comes first in the next", () => {
  const { turns, view, next } = stage();
  const all = ["a", "b", "c", "d"].map((name) => view(name, 5));
  const askAll = () => all.forEach((each) => turns.ask(each));
  askAll();
  assert.equal(next(), "ab", "a third one would take 15 of 12 ms");
  assert.deepEqual(all.map(({ root }) => "due" in root.dataset), [false, false, true, true]);
  askAll();
  assert.equal(next(), "cd");
  askAll();
  assert.equal(next(), "ab");
  assert.equal(next(), "cd");
  assert.equal(next(), "");
  assert.deepEqual(all.map(({ root }) => "due" in root.dataset), [false, false, false, false]);
});

test("one that takes longer than a frame has one for itself", () => {
  const { turns, view, next } = stage();
  const [a, b] = [view("a", 40), view("b", 1)];
  for (let i = 0; i < 2; i++) {
    turns.ask(a);
    turns.ask(b);
    assert.equal(next() + next(), "ab");
  }
  turns.ask(b);
  turns.ask(a);
  assert.equal(next(), "b");
  assert.equal(next(), "a");
});

test("what is away waits after its first drawing, until it comes", () => {
  const { turns, view, next, frames } = stage();
  let isAway = true;
  const a = view("a", 1, { isAway: () => isAway }),
    b = view("b", 1);
  turns.ask(a);
  assert.equal(next(), "a", "it has its size from that");
  turns.came(a);
  assert.equal(frames.length, 0, "it has missed nothing");
  turns.ask(a);
  assert.equal(frames.length, 0);
  turns.ask(b);
  assert.equal(next(), "b");
  isAway = false;
  turns.came(a);
  assert.equal(next(), "a");
  isAway = true;
  turns.ask(a);
  turns.all();
  assert.equal(next(), "", "before a print all have been drawn");
});

test("one that fails or is removed does not keep the others", () => {
  const { turns, view, next } = stage(),
    failed = [];
  globalThis.reportError = (error) => failed.push(error.message);
  const bad = view("", 0, {
    draw() {
      throw new Error("no");
    },
  });
  const [a, b] = [view("a", 1), view("b", 1)];
  for (const each of [bad, a, b]) turns.ask(each);
  turns.drop(a);
  turns.ask(a);
  assert.equal(next(), "b");
  assert.deepEqual(failed, ["no"]);
});

test("a view of words draws at most once in so many milliseconds, and then shows what it has missed", () => {
  const { turns, view, next, frames, pass, timers } = stage();
  const words = view("w", 1, { every: 100 }),
    map = view("m", 1);
  const askBoth = () => [words, map].forEach((each) => turns.ask(each));
  askBoth();
  assert.equal(next(), "wm");
  for (let i = 0; i < 5; i++) {
    pass(16);
    askBoth();
    assert.equal(next(), "m");
    assert.ok("due" in words.root.dataset, "the page is not at rest yet");
  }
  assert.equal(timers.length, 1);
  pass(16);
  assert.equal(next(), "w");
  assert.ok(!("due" in words.root.dataset));
  pass(1000);
  assert.equal(next(), "", "it was asked no more");
  assert.equal(frames.length + timers.length, 0);
  turns.ask(words);
  assert.equal(next(), "w", "after a rest at once");
});

test("a view of words that is asked for alone waits for no frame of another one", () => {
  const { turns, view, next, pass } = stage();
  const words = view("w", 1, { every: 100 });
  turns.ask(words);
  assert.equal(next(), "w");
  turns.ask(words);
  assert.equal(next(), "");
  pass(98);
  assert.equal(next(), "", "99 ms since it began");
  pass(1);
  assert.equal(next(), "w");
  turns.ask(words);
  turns.all();
  assert.ok(!turns.due.size, "to be printed, all are drawn");
});
