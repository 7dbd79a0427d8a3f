// A kernel that is busy, gone or unknown, and what is pressed meanwhile.

import assert from "node:assert/strict";
import test from "node:test";
import { frame } from "../tests/store_messages.mjs";
import { connect } from "./explorer.js";

const GONE = "no kernel answers: this is the last state it sent, after step 1; run the cells again to go on";
const BUSY = "the kernel is busy and has not answered yet: this is the last state it sent, after step 1";
const EITHER =
  "the kernel has not answered yet, it may be busy or gone: this is the last state it sent, after step 1; " +
  "if it is gone, run the cells again to go on";

/** An element of which only the place of what stands in it counts. */
const element = (marked = false) => ({
  ...{ children: [], style: {}, dataset: {}, parentNode: {}, isConnected: true, isMarked: marked },
  append() {},
  prepend() {},
  remove() {},
  addEventListener() {},
  setAttribute() {},
  contains: () => false,
  closest(selector) {
    return this.isMarked && selector === ".jupyter-widgets-disconnected" ? this : null;
  },
});

/** A model as anywidget gives it, shown on a page. manager: what of the front end it can reach. */
function shown(manager, { marked = false } = {}) {
  globalThis.document = { createElement: () => element(), activeElement: null, body: {} };
  globalThis.window = { addEventListener() {}, removeEventListener() {} };
  const handlers = {},
    state = { has_controls: true, status: "paused", frame: frame() },
    sent = [],
    el = element(marked);
  const model = {
    widget_manager: manager,
    get: (name) => state[name],
    set() {},
    save_changes() {},
    off() {},
    send: (content) => sent.push(content),
    on: (name, call) => (handlers[name] ??= []).push(call),
    emit: (name, ...args) => handlers[name]?.forEach((call) => call(...args)),
    take: (name, value) => ((state[name] = value), model.emit(`change:${name}`)),
    custom: (content) => model.emit("msg:custom", content, []),
  };
  const { store, mount } = connect(model);
  const remove = mount([], el);
  return { model, store, sent, el, remove, said: () => [store.warnings.join(), store.hasControls] };
}

/** Let time pass at once, for as long as the test goes on: what it returns takes seconds. */
function clock(t) {
  const { setTimeout, clearTimeout, performance } = globalThis,
    timers = new Map();
  let [now, last] = [0, 0];
  globalThis.setTimeout = (call, ms = 0) => (timers.set(++last, [now + ms, call]), last);
  globalThis.clearTimeout = (id) => timers.delete(id);
  Object.defineProperty(globalThis, "performance", { value: { now: () => now }, configurable: true, writable: true });
  t.after(() => {
    Object.assign(globalThis, { setTimeout, clearTimeout });
    Object.defineProperty(globalThis, "performance", { value: performance, configurable: true, writable: true });
  });
  return (seconds) => {
    for (const end = now + 1000 * seconds; now < end; ) {
      now += 50;
      for (const [id, [due, call]] of [...timers]) if (due <= now && timers.delete(id)) call();
    }
  };
}

test("a kernel that is only busy is said to be, and its buttons stay", (t) => {
  const pass = clock(t),
    kernel = { status: "busy", connectionStatus: "connected" },
    { said, model, sent } = shown({ kernel });
  pass(4.5);
  assert.deepEqual(said(), ["", true]);
  pass(1);
  assert.deepEqual(said(), [BUSY, true]);
  pass(600);
  assert.deepEqual(said(), [BUSY, true]);
  assert.equal(sent.length, 1, "it is not asked again and again");
  model.custom({ type: "here" });
  kernel.status = "idle";
  pass(60);
  assert.deepEqual(said(), ["", true]);
});

test("between two cells a kernel is idle for a moment", (t) => {
  const pass = clock(t),
    kernel = { status: "busy" },
    { said } = shown({ kernel });
  pass(6);
  for (let i = 0; i < 5; i++) {
    kernel.status = "idle";
    pass(1);
    kernel.status = "busy";
    pass(3);
    assert.deepEqual(said(), [BUSY, true]);
  }
});

test("one that was busy and went is gone", (t) => {
  const pass = clock(t),
    manager = { kernel: { status: "busy" } },
    { said } = shown(manager);
  pass(6);
  manager.kernel = null;
  pass(2);
  assert.deepEqual(said(), [GONE, false]);
});

const gone = {
  "there is none": { kernel: null },
  "it is dead": { kernel: { status: "dead" } },
  "it is not connected": { kernel: { status: "unknown", connectionStatus: "disconnected" } },
};
for (const [name, manager] of Object.entries(gone))
  test(`a page that knows of no kernel says so at once: ${name}`, (t) => {
    const pass = clock(t),
      { said } = shown(manager);
    pass(1);
    assert.deepEqual(said(), [GONE, false]);
  });

test("so does one whose models have no comm, whatever kernel there is", (t) => {
  const pass = clock(t),
    saved = [shown({ kernel: { status: "idle" } }, { marked: true }), shown(undefined, { marked: true })];
  pass(1);
  for (const { said } of saved) assert.deepEqual(said(), [GONE, false]);
});

test("a kernel with nothing to do that does not answer knows nothing of the view", (t) => {
  const pass = clock(t),
    { said } = shown({ kernel: { status: "idle" } });
  pass(4.5);
  assert.deepEqual(said(), ["", true]);
  pass(3);
  assert.deepEqual(said(), [GONE, false]);
});

for (const [name, manager] of Object.entries({ none: undefined, odd: { kernel: { status: "unknown" } } }))
  test(`where the front end does not tell, both are said and nothing is taken away: ${name}`, (t) => {
    const pass = clock(t),
      { said, model } = shown(manager);
    pass(5.5);
    assert.deepEqual(said(), [EITHER, true]);
    pass(600);
    assert.deepEqual(said(), [EITHER, true]);
    model.take("frame", frame({ seq: 2 }));
    assert.deepEqual(said(), ["", true]);
  });

test("a manager that throws tells nothing", (t) => {
  const pass = clock(t),
    { said } = shown({ get kernel() { throw new Error("disposed"); } }); // prettier-ignore
  pass(6);
  assert.deepEqual(said(), [EITHER, true]);
});

test("a comm that is cut later is said, and a view that is removed asks no more", (t) => {
  const pass = clock(t),
    { said, model, el, remove } = shown({ kernel: { status: "restarting" } });
  model.custom({ type: "here" });
  pass(60);
  assert.deepEqual(said(), ["", true]);
  el.isMarked = true;
  model.emit("comm_live_update");
  pass(2);
  assert.deepEqual(said(), [GONE, false]);
  remove();
});

// ---- what is pressed

test("what is pressed is answered: it is running, it was refused, or nothing came of it", (t) => {
  const pass = clock(t),
    { model, store, sent } = shown({ kernel: { status: "idle" } });
  store.press("run");
  assert.deepEqual([store.asked, sent.at(-1)], ["run", { type: "command", command: "run" }]);
  model.custom({ type: "done", command: "run", refused: "" });
  assert.equal(store.asked, "run", "its status comes in a moment");
  model.take("status", "running");
  assert.equal(store.asked, "");
  store.press("pause");
  model.custom({ type: "done", command: "pause", refused: "" });
  model.take("status", "idle");
  pass(2);
  store.press("run");
  model.custom({ type: "done", command: "run", refused: "the model of this view is closed" });
  assert.deepEqual([store.asked, store.refused], ["", "the model of this view is closed"]);
  store.press("step");
  assert.deepEqual([store.asked, store.refused], ["", ""]);
  model.custom({ type: "done", command: "step", refused: "no" });
  assert.equal(store.refused, "no");
  model.take("status", "running");
  assert.equal(store.refused, "", "it has gone on");
  model.take("status", "paused");
  store.press("run");
  model.custom({ type: "done", command: "run", refused: "" });
  pass(2);
  assert.equal(store.asked, "", "whoever took it says nothing of a run");
});

test("a press that no kernel answers is said like a view that none does", (t) => {
  const pass = clock(t),
    kernel = { status: "busy" },
    { model, store, said } = shown({ kernel });
  model.custom({ type: "here" });
  pass(60);
  store.press("run");
  pass(6);
  assert.deepEqual([...said(), store.asked], [BUSY, true, "run"]);
  kernel.status = "dead";
  pass(3);
  assert.deepEqual([...said(), store.asked], [GONE, false, ""]);
});

// ---- what is asked

test("what a busy kernel answers too late is asked again as soon as it is free", async (t) => {
  const pass = clock(t),
    { answering } = await import("./kit.js"),
    { model, store, sent } = shown({ kernel: { status: "busy" } });
  let text = null;
  const answers = answering(store, "why_view", () => (text = answers.get(-1)));
  const settle = async () => {
    for (let i = 0; i < 10; i++) await Promise.resolve();
  };
  const asked = () => sent.filter(({ type }) => type === "ask");
  answers.get(-1);
  for (let i = 0; i < 300; i++) {
    pass(1);
    await settle();
  }
  assert.ok(asked().length <= 15, `${asked().length} questions in five minutes`);
  const late = asked().slice(0, -1); // nobody waits for these any more
  for (const { ask } of late) model.custom({ type: "answer", ask, buffers: [], text: "late" });
  for (let i = 0; i < 10; i++) {
    pass(0.1);
    await settle();
  }
  for (const { ask } of asked().slice(late.length)) model.custom({ type: "answer", ask, buffers: [], text: "now" });
  await settle();
  assert.deepEqual(text, { text: "now" });
  assert.equal(store.step, 2, "and nothing else has happened");
  answers.stop();
});
