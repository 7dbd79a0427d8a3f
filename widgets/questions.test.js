// Questions of the views: each once, not too often while the engine runs, and no answer in the wrong place.

import assert from "node:assert/strict";
import test from "node:test";
import { delta, filled, pastFrame, slowHost, soon } from "../tests/store_messages.mjs";
import { answering } from "./kit.js";
import { Questions } from "./questions.js";

test("the same question at the same moment is asked once", async () => {
  const host = slowHost(),
    store = filled(host);
  const first = store.ask("why_view", 3);
  assert.equal(store.ask("why_view", 3), first);
  assert.deepEqual(host.asked.map((asked) => asked.slice(0, 3)), [["why_view", 3, -1]]);
  host.asked[0][3]({ text: "so" });
  assert.deepEqual(await first, { text: "so" });
  store.receive(delta());
  assert.notEqual(store.ask("why_view", 3), first, "the engine has moved on");
});

test("a question that got no answer can be asked again, and a host that fails is an error", async () => {
  const answers = [null, { text: "now" }],
    slow = slowHost({ ask: async () => answers.shift(), now: () => (slow.clock += 1000) }),
    store = filled(slow);
  assert.equal(await store.ask("a_view", 0), null);
  assert.deepEqual(await store.ask("a_view", 0), { text: "now" });
  const host = slowHost({ ask: async () => Promise.reject(new Error("closed")) });
  assert.deepEqual(await filled(host).ask("a_view", 0), { error: "Error: closed" });
});

test("while the engine runs a name has four new questions a second, in the past as many as it likes", async () => {
  const host = slowHost(),
    store = filled(host);
  for (let id = 0; id < 4; id++) store.ask("a_view", id);
  store.ask("b_view", 0);
  assert.deepEqual(host.asked.map(([what, id]) => `${what} ${id}`), ["a_view 0", "b_view 0"]);
  assert.deepEqual(host.timers.map(([, ms]) => ms), [250, 500, 750]);
  host.timers[0][0]();
  await soon();
  assert.equal(host.asked.length, 3);
  store.lookAt(0);
  host.asked.at(-1)[3](pastFrame());
  await soon();
  for (let id = 0; id < 4; id++) store.ask("a_view", id);
  assert.deepEqual(host.asked.slice(-4).map(([, , step]) => step), [0, 0, 0, 0]);
});

test("while the engine runs answers take one part in forty of the time, and at its end none has to wait", async () => {
  let isRunning = true;
  const host = slowHost(),
    questions = new Questions(host, () => isRunning),
    pass = async (ms) => {
      host.clock += ms;
      for (const [go] of host.timers.splice(0)) go();
      await soon();
    };
  questions.ask("a_view", 0, -1, 1);
  host.asked[0][3]({ text: "dear", ms: 50 }); // 2,000 ms of rest
  await soon();
  questions.ask("a_view", 0, -1, 2);
  questions.ask("b_view", 0, -1, 2);
  questions.ask("b_view", 0, 7, "step 7");
  assert.deepEqual(host.asked.slice(1).map(([what, , step]) => `${what} ${step}`), ["b_view 7"], "a past step costs no run");
  for (let waited = 0; waited < 1750; waited += 250) await pass(250);
  assert.equal(host.asked.length, 2);
  await pass(250);
  assert.deepEqual(host.asked.slice(2).map(([what]) => what).sort(), ["a_view", "b_view"]);
  for (const [, , , told] of host.asked.slice(2)) told({ text: "cheap", ms: 0.1 });
  await soon();
  questions.ask("c_view", 0, -1, 3);
  assert.equal(host.asked.length, 4, "two answers, a tenth of a second each");
  await pass(200);
  assert.equal(host.asked.length, 5);
  host.asked[4][3]({ ms: 1000 });
  await soon();
  questions.ask("d_view", 0, -1, 4);
  isRunning = false;
  await pass(250);
  assert.equal(host.asked.length, 6, "the run has ended");
});

test("answering gives the newest answer, asks when what is shown changes, and never two at a time", async () => {
  const host = slowHost(),
    store = filled(host);
  let draws = 0;
  const answers = answering(store, "a_view", () => draws++);
  assert.equal(answers.get(1), null);
  assert.equal(answers.get(1), null);
  assert.equal(host.asked.length, 1);
  store.receive(delta());
  answers.get(1);
  assert.equal(host.asked.length, 1, "one answer is still under way");
  host.asked[0][3]({ n: 1 });
  await soon();
  assert.equal(draws, 1);
  assert.deepEqual(answers.get(1), { n: 1 }, "of the step before: the newest there is");
  host.clock += 1000;
  assert.deepEqual(answers.get(1), { n: 1 }, "however long the next one takes");
  host.timers.shift()[0]();
  await soon();
  host.asked[1][3]({ n: 2 });
  await soon();
  assert.deepEqual(answers.get(1), { n: 2 });
  assert.equal(host.asked.length, 2);
  assert.equal(answers.get(7), null, "about another one nothing is known yet");
  answers.stop();
});

test("an answer about another step is shown for a moment at most, an error is no answer", async () => {
  const host = slowHost(),
    store = filled(host),
    answers = answering(store, "a_view", () => {});
  answers.get(0);
  host.asked[0][3]({ n: 1 });
  await soon();
  store.lookAt(0);
  host.asked[1][3](pastFrame());
  await soon();
  assert.deepEqual(answers.get(0), { n: 1 }, "the right one is on its way");
  assert.equal(host.asked.length, 3);
  host.clock += 500;
  assert.equal(answers.get(0), null, "for too long");
  host.asked[2][3]({ error: "no such thing" });
  await soon();
  assert.equal(answers.get(0), null);
  answers.stop();
});

test("nothing to tell is no answer", async () => {
  const store = filled(slowHost({ ask: async () => ({}) })),
    answers = answering(store, "a_view", () => {});
  answers.get(0);
  await soon();
  assert.equal(answers.get(0), null);
});

/** What is asked of a host that gives no answer while `isBusy`, and a clock for its timers. */
function busyHost() {
  const host = slowHost({ ask: async (...what) => (host.asked.push(what), host.isBusy ? null : { n: host.asked.length }) });
  host.isBusy = true;
  host.pass = async (ms) => {
    for (const end = host.clock + ms; host.clock < end; ) {
      host.clock += 50;
      const due = host.timers.filter((timer) => (timer[2] ??= host.clock - 50 + timer[1]) <= host.clock);
      host.timers = host.timers.filter((timer) => !due.includes(timer));
      for (const [call] of due) call();
      await soon();
    }
  };
  return host;
}

test("a question that got no answer is asked again at rest, ever less often, and at once when something is heard", async () => {
  const host = busyHost(),
    store = filled(host);
  let draws = 0;
  const answers = answering(store, "a_view", () => (draws++, answers.get(1)));
  answers.get(1);
  await host.pass(1000);
  const early = host.asked.length;
  assert.ok(early >= 2, "the engine rests, and so does what is shown");
  for (let i = 0; i < 100; i++) answers.get(1);
  assert.equal(host.asked.length, early, "drawing again asks nothing");
  await host.pass(120_000);
  assert.ok(host.asked.length < 15, `${host.asked.length} questions in two minutes`);
  const before = host.asked.length;
  host.isBusy = false;
  store.hear();
  await host.pass(500);
  assert.equal(host.asked.length, before + 1);
  assert.deepEqual(answers.get(1), { n: before + 1 });
  store.hear();
  await host.pass(60_000);
  assert.equal(host.asked.length, before + 1, "an answer is enough");
  answers.stop();
});

test("of a kernel that is gone nothing is asked until it is heard; a view that is removed asks no more", async () => {
  const host = busyHost(),
    store = filled(host);
  const answers = [1, 2].map((id) => answering(store, `view ${id}`, () => answers[id - 1].get(id)));
  store.kernel = "gone";
  answers.forEach((each, i) => each.get(i + 1));
  await host.pass(200_000);
  assert.equal(host.asked.length, 2);
  answers[1].stop();
  host.isBusy = false;
  store.kernel = "";
  store.hear();
  await host.pass(1000);
  assert.deepEqual(host.asked.slice(2).map(([what]) => what), ["view 1"]);
});
