// What the colours of the block view mean. How they are drawn is tested in chromium (tests/browser/test_block_modes.py).

import assert from "node:assert/strict";
import test from "node:test";
import { BLOCK_MODES, NUM_CLASSES, OWNER_LOOKS } from "./block_modes.js";
import { ageWords, agesOf, blockClasses, classWords, moreOwners, ownerLook, poolNumbers } from "./block_modes.js";
import { blockNote } from "./block_draw.js";
import { classLook, drawnFill } from "./block_paint.js";
import { theme } from "./paint.js";
import { Store } from "./store.js";
import { FREE, SHARED, USED } from "./wire.js";

/** A store with these words, and tables of live sequences by their ids. */
function pool(words, tables = {}) {
  const store = new Store();
  store.numBlocks = words.length;
  store.words = Uint16Array.from(words);
  store.sequences = new Map(
    Object.entries(tables).map(([id, table]) => [Number(id), { id: Number(id), name: `r${id}`, isLive: true, table }]),
  );
  return store;
}

const classes = (store, mode, ages) => [...blockClasses(store, mode, ages)];

test("by state: free, cached, used, shared", () => {
  assert.deepEqual(classes(pool([0, 1, 2, 3, 4, 7]), "state"), [0, 1, 2, 2, 3, 3]);
});

test("by owner: one sequence has its own look, several have one in common", () => {
  const store = pool([0, 1, 2, 3, 5, 2], { 0: [2, 4], 1: [3, 4], 2: [5] });
  const [free, cached, first, second, both, third] = classes(store, "owner");
  assert.deepEqual([free, cached, both], [0, 1, 2]);
  assert.deepEqual([first, second, third], [3, 3 + ownerLook(1), 3 + ownerLook(2)]);
  store.sequences.get(0).isLive = false; // it is on its way out: its block has no owner to show
  assert.equal(classes(store, "owner")[2], 2);
  assert.deepEqual(new Set(Array.from({ length: OWNER_LOOKS }, (_, id) => ownerLook(id))).size, OWNER_LOOKS);
  assert.ok([...Array(100).keys()].every((id) => ownerLook(id) !== ownerLook(id + 1)));
});

test("by ref count: the counts in ranges, the largest that a word can tell too", () => {
  const refs = [1, 2, 3, 4, 5, 8, 9, 300, 32_767];
  const words = [0, 1, ...refs.map((ref) => 2 * ref), 2 * 32_767 + 1];
  assert.deepEqual(classes(pool(words), "refs"), [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6]);
});

test("by content hash: empty, not full, known and held, known and cached", () => {
  assert.deepEqual(classes(pool([0, 1, 2, 3, 4, 5]), "hash"), [0, 3, 1, 2, 1, 2]);
});

test("by age: from Python's answer, whose bytes may lie anywhere; what it does not tell of is old", () => {
  const bytes = new Uint8Array(1 + 20),
    view = new DataView(bytes.buffer);
  [5, 0, 2].forEach((block, i) => view.setUint32(1 + 4 * i, block, true));
  [0, 3, 64].forEach((age, i) => view.setUint16(13 + 2 * i, age, true));
  const told = { blocks: new DataView(bytes.buffer, 1, 12), ages: new DataView(bytes.buffer, 13, 6) };
  const ages = agesOf(told, 6);
  assert.deepEqual([...ages], [3, 65_535, 64, 65_535, 65_535, 0]);
  assert.deepEqual(classes(pool([0, 0, 0, 0, 0, 0]), "age", ages), [2, 0, 5, 0, 0, 1]);
  assert.equal(ageWords(ages, 0, 40), "written or freed 3 steps ago");
  assert.equal(ageWords(ages, 1, 40), "not written or freed in the last 40 steps");
  assert.equal(ageWords(ages, 5, 40), "written or freed in this step");
  assert.equal(ageWords(Uint16Array.of(1), 0, 40), "written or freed 1 step ago");
  assert.equal(agesOf(null, 6), null);
  assert.equal(ageWords(null, 0, 40), "");
  assert.deepEqual(classes(pool([0, 2]), "age", null), [0, 0]);
});

test("every class that a mode has is one that its legend can name, each once", () => {
  const owners = Array.from({ length: OWNER_LOOKS }, (_, id) => ({ id, name: `r${id}` }));
  for (const mode of Object.keys(BLOCK_MODES)) {
    const named = classWords(mode, owners);
    assert.deepEqual(
      named.map(([at]) => at).sort((a, b) => a - b),
      [...Array(NUM_CLASSES[mode]).keys()],
      mode,
    );
    assert.ok(named.every(([, word, meaning]) => word && meaning));
  }
});

test("numbers in a legend have their unit, and names of requests say so", () => {
  const words = (mode, owners) => classWords(mode, owners).map(([, word]) => word);
  assert.deepEqual(words("age"), ["0 steps", "1–3 steps", "4–15 steps", "16–63 steps", "64 steps and more", "long ago"]);
  assert.deepEqual(words("owner", [{ id: 4, name: "4" }]), ["free", "cached", "several", "request 4"]);
  assert.deepEqual(
    classWords("refs").slice(2, 4).map(([, , meaning]) => meaning),
    ["held by 1 request", "held by 2 requests"],
  );
  const ids = [...Array(1240).keys()];
  assert.equal(moreOwners([], 0), "");
  assert.equal(moreOwners([0, 3, 7, 9], 4), "");
  assert.equal(moreOwners([1, 3, 9], 3), "looks repeat every 8", "two that are named look the same");
  assert.equal(moreOwners(ids.slice(0, 7), 6), "1 more; looks repeat every 8");
  assert.equal(moreOwners(ids, 6), "1,234 more; looks repeat every 8");
});

// What a colour is to those who see all colours, and without the red, the green and the blue cones (Machado 2009).
const VISIONS = [
  [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
  [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
  [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
  [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
];
const channels = (color) =>
  color[0] === "#" ? [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16)) : color.match(/\d+/g).map(Number);

/** How far two colours are apart for one who sees so (CIE 1976; 2.3 can just be seen). */
function apart(one, other, vision) {
  const [a, b] = [one, other].map((color) => {
    const light = channels(color).map((c) => (c <= 10 ? c / 3294 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    const [red, green, blue] = vision.map((row) => Math.min(1, Math.max(0, row.reduce((s, k, i) => s + k * light[i], 0))));
    const root = (v) => (v > 0.008856 ? Math.cbrt(v) : 7.787 * v + 16 / 116);
    const x = root((0.4125 * red + 0.3576 * green + 0.1804 * blue) / 0.9505),
      y = root(0.2127 * red + 0.7152 * green + 0.0722 * blue),
      z = root((0.0193 * red + 0.1192 * green + 0.9503 * blue) / 1.0888);
    return [116 * y - 16, 500 * (x - y), 200 * (y - z)];
  });
  return Math.hypot(...a.map((v, i) => v - b[i]));
}

/** A theme without a page: of its canvas the colour is asked for, and nothing else. */
function themeOf(bg, fg) {
  const g = { fillRect() {}, getImageData: () => ({ data: channels(g.fillStyle === "#fff" ? "#ffffff" : g.fillStyle) }) };
  globalThis.document = { createElement: () => ({ getContext: () => g }) };
  const values = { "--nvx-bg": bg, "--nvx-fg": fg };
  globalThis.getComputedStyle = () => ({ fontFamily: "sans", getPropertyValue: (name) => values[name] ?? "#808080" });
  return theme({});
}

for (const [name, bg, fg] of [["light", "#ffffff", "#000000"], ["dark", "#111111", "#ffffff"]])
  test(`by owner, ${name}: every look can be told from every other, and none is like that of several`, () => {
    const t = themeOf(bg, fg),
      looks = [...Array(NUM_CLASSES.owner).keys()].map((at) => classLook(t, "owner", at));
    assert.equal(t.isDark, name === "dark");
    const patterns = looks.slice(2).map(({ stripes: s }) => s && `${s.step} ${s.width} ${s.down ?? false}`);
    assert.equal(new Set(patterns).size, OWNER_LOOKS + 1, "where two colours are one to somebody, the stripes differ");
    const colors = looks.map(({ color, pixel = color }) => pixel); // of a large pool nothing but these is seen
    for (const [at, color] of colors.entries())
      for (const other of colors.slice(0, at))
        assert.ok(apart(color, other, VISIONS[0]) >= 20, `${color} and ${other}: ${apart(color, other, VISIONS[0])}`);
    const several = looks[2];
    for (const own of looks.slice(3)) {
      const { step, down } = own.stripes ?? {},
        isAlike = down && Math.abs(step - several.stripes.step) < 2; // its stripes are no help
      const seen = VISIONS.map((vision) => apart(own.color, several.color, vision));
      assert.ok(Math.min(...seen) >= (isAlike ? 20 : 10), `${own.color} and several: ${seen}`);
    }
  });

test("the pool in numbers", () => {
  assert.deepEqual(poolNumbers(Uint16Array.of(2, 0, 1, 0, 4, 0, 3, 7, 0, 0)), {
    states: [5, 1, 2, 2],
    longest: 3,
    held: 4,
    sharedPart: 0.5,
  });
  assert.deepEqual(poolNumbers(new Uint16Array(7)), { states: [7, 0, 0, 0], longest: 7, held: 0, sharedPart: 0 });
  assert.equal(poolNumbers(new Uint16Array(0)).longest, 0);
});

test("a million blocks have classes and numbers", () => {
  const store = pool(Array.from({ length: 1_000_000 }, (_, block) => block % 6));
  for (const mode of Object.keys(BLOCK_MODES)) assert.equal(blockClasses(store, mode).length, 1_000_000);
  assert.deepEqual(poolNumbers(store.words).states, [166_667, 166_667, 333_334, 333_332]);
});

test("what stands in a cell beside its number, and how far it is filled", () => {
  assert.equal(blockNote("state", SHARED, 8), "×4");
  assert.equal(blockNote("refs", USED, 2), "");
  assert.deepEqual(
    [0, 12, 65_535, undefined].map((age) => blockNote("age", USED, 2, age)),
    ["0", "−12", "", ""],
  );
  assert.deepEqual(
    [drawnFill("state", USED, 0.25), drawnFill("age", USED, 0.25), drawnFill("state", FREE, 0)],
    [0.25, 1, 1],
  );
});
