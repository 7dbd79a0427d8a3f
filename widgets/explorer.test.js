// What ties the store to a model: messages that can't be read, a kernel that is gone, an output that is drawn anew.

import assert from "node:assert/strict";
import test from "node:test";
import { delta, frame } from "../tests/store_messages.mjs";
import { connect, keeper } from "./explorer.js";

/** What anywidget gives a module as its model. */
class Model {
  constructor(state = {}) {
    Object.assign(this, { state, handlers: {}, sent: [], isGone: false });
  }
  get(name) {
    return this.state[name];
  }
  set(name, value) {
    this.state[name] = value;
  }
  save_changes() {}
  send(content) {
    if (this.isGone) throw new Error("Cannot send");
    this.sent.push(content);
  }
  on(name, handler) {
    (this.handlers[name] ??= []).push(handler);
  }
  emit(name, ...args) {
    for (const handler of this.handlers[name] ?? []) handler(...args);
  }
  take(name, value) {
    this.state[name] = value;
    this.emit(`change:${name}`);
  }
  /** A custom message as the front end delivers it: `deliver` makes of each binary part what arrives. */
  custom(type, message, deliver) {
    const names = Object.keys(message).filter((name) => ArrayBuffer.isView(message[name]));
    const content = Object.fromEntries(Object.entries(message).filter(([name]) => !names.includes(name)));
    const buffers = deliver && names.map((name) => deliver(message[name]));
    this.emit("msg:custom", { ...content, type, buffers: names }, buffers);
  }
}
const base64 = (view) => Buffer.from(view.buffer, view.byteOffset, view.byteLength).toString("base64");
const asTexts = (message) =>
  Object.fromEntries(Object.entries(message).map(([k, v]) => [k, ArrayBuffer.isView(v) ? base64(v) : v]));
const dropped = (message) => Object.fromEntries(Object.entries(message).filter(([, v]) => !ArrayBuffer.isView(v)));

for (const [name, deliver] of Object.entries({ base64, ArrayBuffer: (view) => view.buffer.slice(0) }))
  test(`messages whose buffers arrive as ${name} are read`, () => {
    const model = new Model({ frame: frame() }),
      { store } = connect(model);
    model.custom("delta", delta(), deliver);
    assert.deepEqual([store.step, store.warnings, model.sent], [3, [], []]);
  });

test("a frame without its binary parts is said, and asked for as text once", () => {
  const model = new Model({ frame: dropped(frame()) }),
    { store } = connect(model);
  assert.match(store.warnings.join(), /binary data does not arrive \(rows, tables, words, .*asked to send it as text/);
  model.custom("delta", delta(), null);
  assert.deepEqual(model.sent, [{ type: "resync", text: true }]);
  model.take("frame", asTexts(frame()));
  assert.deepEqual([store.step, [...store.words], store.warnings], [2, [5, 2, 2, 1, 0, 0], []]);
  const next = delta(),
    names = Object.keys(next).filter((name) => ArrayBuffer.isView(next[name])),
    texts = names.map((name) => base64(next[name]));
  model.emit("msg:custom", { ...dropped(next), type: "delta", buffers: names, texts }, []);
  assert.deepEqual([store.step, store.warnings], [3, []]);
});

test("a part that is cut off is said too, not thrown", () => {
  const model = new Model({ frame: frame() }),
    { store } = connect(model);
  const warn = console.warn;
  console.warn = () => {};
  model.take("frame", frame({ seq: 2, rows: new Uint8Array(7) }));
  console.warn = warn;
  assert.match(store.warnings.join(), /does not arrive as it was sent .*multiple/);
  assert.deepEqual(model.sent, [{ type: "resync", text: true }]);
  model.take("frame", frame({ seq: 3, version: 9 }));
  assert.match(store.warnings.join(), /another version/);
});

test("an answer without its parts is no answer", async () => {
  const model = new Model({ frame: frame() }),
    { store } = connect(model),
    told = store.ask("block_view", 1);
  model.emit("msg:custom", { type: "answer", ask: model.sent[0].ask, ages: null, buffers: [["ages"]] }, undefined);
  assert.deepEqual([await told, store.warnings.length], [null, 1]);
});

test("what was left out of the saved notebook is said until all of it comes", () => {
  const none = new Uint8Array(0),
    few = frame({ left_out: "the map was left out", num_blocks: 0, words: none, tables: none, rows: none });
  const model = new Model({ frame: few }),
    { store } = connect(model);
  assert.deepEqual([store.numBlocks, store.warnings], [0, ["the map was left out"]]);
  assert.deepEqual(model.sent, [{ type: "resync" }]);
  model.custom("frame", frame({ seq: 2 }), (view) => view);
  assert.deepEqual([store.numBlocks, store.warnings], [6, []]);
  model.take("frame", { ...few, seq: 2 });
  assert.deepEqual([store.numBlocks, model.sent.length], [6, 1], "of the same message nothing is taken back");
});

test("a kernel that is gone is said, and its buttons go; the last state stays", () => {
  const model = new Model({ frame: frame(), has_controls: true }),
    { store } = connect(model);
  assert.deepEqual([store.hasControls, store.warnings], [true, []]);
  model.isGone = true;
  const warn = console.warn;
  console.warn = () => {};
  store.host.command("run");
  console.warn = warn;
  assert.deepEqual(store.warnings, [
    "no kernel answers: this is the last state it sent, after step 1; run the cells again to go on",
  ]);
  assert.deepEqual([store.hasControls, store.step], [false, 2]);
  model.take("frame", frame({ seq: 2 }));
  assert.deepEqual([store.hasControls, store.warnings], [true, []], "it was away and is back");
});

// ---- a view whose output is drawn anew

/** An element of which only the place in the page counts. */
const element = () => ({
  parentNode: null,
  children: [],
  append(child) {
    child.parentNode?.children.splice(child.parentNode.children.indexOf(child), 1);
    child.parentNode = this;
    this.children.push(child);
  },
  remove() {
    this.parentNode = null;
  },
  addEventListener() {},
});

function page() {
  const timers = [],
    mounted = [];
  const keep = keeper(element, (call) => timers.push(call), (call) => call());
  globalThis.document ??= { activeElement: null, body: {} };
  const mount = (host) => {
    mounted.push(host);
    return () => mounted.splice(mounted.indexOf(host), 1);
  };
  const run = () => timers.splice(0).forEach((call) => call());
  return { keep, mount, mounted, run };
}

test("what stood in an element that left the page moves into the next one", () => {
  const { keep, mount, mounted, run } = page(),
    [output, one, two] = [element(), element(), element()];
  const removeOne = keep("blocks", one, mount);
  output.append(one);
  run();
  one.remove(); // "Loading widget..." stands there now
  const removeTwo = keep("blocks", two, mount);
  assert.deepEqual([mounted.length, two.children[0] === mounted[0]], [1, true]);
  removeOne();
  assert.equal(mounted.length, 1, "the old view is closed later; what it had has moved on");
  removeTwo();
  assert.equal(mounted.length, 0);
});

test("views that stand elsewhere, or have not got their place yet, keep what they have", () => {
  const { keep, mount, mounted, run } = page(),
    [output, scrolledAway, first, second, third, other] = [1, 2, 3, 4, 5, 6].map(element);
  keep("blocks", first, mount);
  keep("blocks", second, mount); // both were drawn, none is in the page
  output.append(first);
  output.append(second);
  run();
  scrolledAway.append(output);
  output.remove(); // the cell has left the page with all in it
  keep("blocks", third, mount);
  assert.equal(mounted.length, 3);
  first.remove();
  keep("schedule", other, mount);
  assert.equal(mounted.length, 4, "another view");
});
