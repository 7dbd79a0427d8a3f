// Where the memory goes: the ledger, how full the pool is, and whether one more sequence would fit.

import { paintBlock } from "./block_paint.js";
import { READABLE, VIEWS, answering, drawLegend, drawing, make, panel, say } from "./kit.js";
import {
  arithmetic,
  byteWords,
  fragmentWords,
  ledgerLines,
  needWords,
  percentWords,
  poolParts,
  slotParts,
  verdict,
} from "./memory_words.js";
import { box, mix, stripes, surface, theme } from "./paint.js";
import { CACHED, FREE, SHARED, USED } from "./wire.js";
import { count, digits } from "./words.js";

const MEMORY_STYLE = `
.nvx-memory-body { container-type: inline-size; display: grid; grid-template-columns: minmax(0, 1fr); gap: 12px; }
.nvx-memory h4 { margin: 0 0 3px; font: inherit; font-weight: 600; color: var(--nvx-muted); }
.nvx-memory p { margin: 3px 0 0; }
.nvx-memory .nvx-legend { margin: 4px 0 0; }
.nvx-memory-bar { width: 0; min-width: 100%; overflow: hidden; }
.nvx-memory table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.nvx-memory th, .nvx-memory td { padding: 1px 14px 1px 0; font-weight: 400; text-align: start; vertical-align: top; }
.nvx-memory td:nth-child(2) { text-align: end; white-space: nowrap; }
.nvx-memory td:nth-child(3) { color: var(--nvx-muted); overflow-wrap: anywhere; }
.nvx-memory ol { margin: 6px 0 0; padding-left: 22px; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
.nvx-memory label { display: inline-flex; flex-wrap: wrap; align-items: center; gap: 6px; }
.nvx-memory input { width: 8em; padding: 3px 6px; font: inherit; color: var(--nvx-fg); background: var(--nvx-bg);
  border: 1px solid var(--nvx-muted); border-radius: 4px; }
.nvx-memory input:focus-visible { outline: 2px solid var(--nvx-accent); outline-offset: 1px; }
@container (max-width: 420px) {
  .nvx-memory tr { display: grid; grid-template-columns: minmax(0, 1fr) auto; }
  .nvx-memory td:nth-child(3) { grid-column: 1 / -1; }
}
.nvx-memory-mark { display: inline-block; width: 1.6em; font-weight: 700; }
`;
const LONGEST_ASKED = 2 ** 31 - 1,
  MEMORY_BAR = 26,
  VERDICT_MARKS = { fits: "✓", evicts: "✓*", waits: "✗", never: "✗" };
const POOL_LOOKS = {
  used: { state: USED, fill: 1 },
  shared: { state: SHARED, fill: 1 },
  cached: { state: CACHED },
  free: { state: FREE },
};

/** Mount the view on a store; returns what removes it. */
export function mountMemoryView(store, el) {
  const input = make("input", { type: "number", min: 1, max: LONGEST_ASKED, step: 1, value: 1000 });
  const need = make("p", { className: "nvx-memory-need", "aria-live": "polite" }),
    fragments = make("p", {}),
    ledger = make("div", { className: "nvx-memory-ledger" });
  const [pool, slots] = ["Blocks of the pool", "Slots of the blocks in use"].map((title) => {
    const canvas = make("canvas", { role: "img" }),
      legend = make("div", { className: "nvx-legend" }),
      place = make("div", {}, make("h4", {}, title), make("div", { className: "nvx-memory-bar" }, canvas), legend);
    return { title, canvas, legend, place, spans: [], over: -1 };
  });
  slots.place.append(fragments);
  const label = make("label", {}, "One more sequence of ", input, " tokens would need");
  const body = make(
    "div",
    { className: "nvx-memory-body" },
    pool.place,
    slots.place,
    make("div", {}, make("h4", {}, "One more sequence"), label, need),
    make("div", {}, make("h4", {}, "Memory of the device"), ledger),
  );
  const { root, status } = panel("Memory", body, "nvx-memory");
  root.prepend(make("style", {}, MEMORY_STYLE));
  el.append(root);
  let last = null, // the newest answer
    listed = ""; // the ledger that is in the page

  function paintPart(g, t, name, x, y, w, h) {
    if (POOL_LOOKS[name]) paintBlock(g, t, x, y, w, h, POOL_LOOKS[name]);
    else if (name === "tokens held") box(g, x, y, w, h, 0, t.used);
    else if (name === "due")
      box(g, x, y, w, h, 0, stripes(t, t.decode, mix(t.decode, t.bg, 0.75), { step: 5, width: 1.4 }));
    else box(g, x, y, w, h, 0, stripes(t, t.preempted, mix(t.preempted, t.bg, 0.8), { step: 7, width: 2, down: true }));
  }

  /** A stacked bar; beside each pattern in its legend stands the number. */
  function bar(view, t, parts, noun) {
    const { title, canvas, legend } = view;
    const width = canvas.parentElement.clientWidth,
      whole = parts.reduce((sum, [, n]) => sum + n, 0);
    const look = [width, t.key, globalThis.devicePixelRatio, ...parts].join();
    if (look === view.look) return;
    view.look = look;
    const g = surface(canvas, width, MEMORY_BAR);
    const words = parts.map(([name, n]) => `${name} ${digits(n)} (${percentWords(n, whole)})`);
    let x = 0;
    view.spans = parts.map(([name, n, meaning], i) => {
      const w = whole ? (n / whole) * width : 0;
      if (n) paintPart(g, t, name, x, 0, Math.max(1, w - 1), MEMORY_BAR);
      x += w;
      return { end: x, said: [words[i], meaning] };
    });
    canvas.setAttribute("aria-label", `${title}: ${words.join(", ")}, of ${count(whole, noun)}`);
    drawLegend(
      legend,
      parts.map(([name, , meaning], i) => [
        words[i],
        meaning,
        (g, x, y, w, h) => paintPart(g, t, name, x, y + 1, w, h - 2),
        name,
      ]),
    );
  }

  function drawLedger(told) {
    const key = JSON.stringify(told);
    if (key === listed) return;
    listed = key;
    if (!told) {
      ledger.replaceChildren(make("p", {}, "This engine has no memory ledger: nothing was measured."));
      return;
    }
    const rows = ledgerLines(told).map(([name, size, note]) => {
      const share = told.total ? ` (${percentWords(size, told.total)})` : "";
      const exact = { title: count(size, "byte") };
      return make(
        "tr",
        {},
        make("th", { scope: "row" }, name),
        make("td", exact, byteWords(size) + share),
        make("td", {}, note),
      );
    });
    ledger.replaceChildren(
      make("table", { "aria-label": "Memory ledger" }, make("tbody", {}, ...rows)),
      make("p", {}, `How the pool came to its ${count(told.num_blocks, "block")}:`),
      make("ol", {}, ...arithmetic(told).map((step) => make("li", {}, step))),
    );
  }

  /** The number in the field, 0 if it is none. */
  function asked() {
    const length = Number(input.value);
    return Number.isInteger(length) && length >= 1 && length <= LONGEST_ASKED ? length : 0;
  }

  function drawNeed(told, length) {
    input.setAttribute("aria-invalid", !length);
    let text = "…",
      mark = "",
      kind = "";
    if (!length) text = `Give a whole number of tokens from 1 to ${digits(LONGEST_ASKED)}.`;
    else if (told?.need?.length === length) {
      kind = verdict(told.need, store.numBlocks);
      mark = VERDICT_MARKS[kind];
      text = needWords(told.need, store).join(" ");
    }
    root.dataset.verdict = kind;
    if (need.textContent === mark + text) return;
    need.replaceChildren(make("span", { className: "nvx-memory-mark", "aria-hidden": "true" }, mark), text);
  }

  function draw() {
    const t = theme(root),
      length = asked(),
      answer = answers.get(length);
    root.style.colorScheme = t.isDark ? "dark" : "light";
    if (answer) last = { answer, moment: store.moment };
    const told = answer ?? (last?.moment === store.moment ? last.answer : null);
    body.hidden = !store.numBlocks;
    if (body.hidden) return say(status, ["Nothing has run yet."]);
    const counts = store.countBlocks();
    bar(pool, t, poolParts(counts), "block");
    slots.place.hidden = !told;
    if (told) {
      bar(slots, t, slotParts(told.slots), "slot");
      fragments.textContent = fragmentWords(told.slots, store.blockSize);
      drawLedger(told.ledger);
    }
    drawNeed(told, length);
    const held = counts[2] + counts[3],
      part = [pool, slots].map((view) => view.spans.find(({ end }) => view.over >= 0 && view.over < end)).find(Boolean);
    if (part) say(status, part.said);
    else say(status, [
      `${digits(held)} of ${count(store.numBlocks, "block")} in use (${percentWords(held, store.numBlocks)})`,
      `${digits(counts[1])} cached`,
      told ? `${count(told.slots.held, "token")} held` : "",
    ]);
    root.dataset.step = told?.step ?? "";
  }

  for (const view of [pool, slots]) {
    const point = (x) => {
      view.over = x;
      drawn.ask();
    };
    view.canvas.addEventListener("pointermove", (event) => point(event.offsetX));
    view.canvas.addEventListener("pointerleave", () => point(-1));
  }
  const drawn = drawing(root, draw, READABLE),
    answers = answering(store, "memory_view", drawn.ask),
    leave = store.subscribe(drawn.ask);
  input.addEventListener("input", drawn.ask);
  input.addEventListener("keydown", (event) => event.stopPropagation()); // the notebook has its own keys
  return () => {
    leave();
    answers.stop();
    drawn.stop();
    root.remove();
  };
}

VIEWS.memory_view = mountMemoryView;
