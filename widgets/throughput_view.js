// Tokens a second, how many run and wait, and how long the tokens of each request took.

import { READABLE, VIEWS, answering, drawLegend, drawing, keyboardGrid, make, panel, say } from "./kit.js";
import { box, stripes, surface, theme } from "./paint.js";
import { SENTENCE_STYLE } from "./sentence.js";
import {
  RATE_HEIGHT,
  RATE_LEFT,
  drawRates,
  paintLine,
  paintPause,
  rateColumnAt,
} from "./throughput_draw.js";
import { duration, pausesOf, rateWords, ratesOf, smoothingOf, workOf } from "./throughput_rates.js";
import { latencyTable } from "./throughput_table.js";
import { unpackToken } from "./wire.js";

const RATE_LEGEND = [
  ["prefill", "prompt tokens computed", (g, t, ...at) => box(g, ...at, 3, t.prefill)],
  [
    "recompute",
    "the part of it that a preemption had thrown away",
    (g, t, ...at) => box(g, ...at, 3, stripes(t, t.preempted, t.prefill, { step: 8, width: 3.2 })),
  ],
  ["decode", "one token a running request and step", (g, t, ...at) => box(g, ...at, 3, t.decode)],
  ["running", "requests that held blocks while the step ran", (g, t, ...at) => paintLine(g, t.used, [], ...at)],
  ["waiting", "requests in the waiting queue while the step ran", (g, t, ...at) => paintLine(g, t.preempted, [4, 3], ...at)],
  [
    "pause",
    "the engine stood still, or steps are missing: that time is left out",
    (g, t, x, y, w, h) => paintPause(g, t, x + w / 2, y, h),
  ],
];

/** Mount the view on a store; returns what removes it. */
export function mountThroughputView(store, el) {
  const canvas = make("canvas"),
    field = make("div", { className: "nvx-field" }, canvas),
    table = latencyTable(store);
  const { root, legend, status } = panel("Throughput", make("div", {}, field, table.place), "nvx-throughput");
  root.prepend(make("style", {}, SENTENCE_STYLE));
  el.append(root);
  // Of each step the seconds worked and when it ended on that clock; the rates; the pauses; what is pointed at.
  const at = { work: [], ends: [], total: 0, rates: [], pauses: [], width: 0, shown: -1, hover: -1 };
  let filled = null, // the answer that the table shows, and who is selected in it
    measured = null; // the newest column that was measured, and how many there were

  function measure() {
    const { columns } = store,
      newest = columns.at(-1);
    at.shown = columns.findLastIndex((column) => column.step === store.shownStep);
    if (measured?.newest === newest && measured?.first === columns[0]) return;
    measured = { newest, first: columns[0] };
    at.work = workOf(columns);
    let total = 0;
    at.ends = at.work.map((seconds) => (total += seconds));
    at.total = total;
    at.rates = ratesOf(columns, at.work, smoothingOf(total));
    at.pauses = pausesOf(columns, at.work);
    if (at.hover >= columns.length) at.hover = -1;
  }

  const selected = () => {
    const { kind, id } = store.selection;
    return kind === "sequence" ? id : kind === "token" ? unpackToken(id)[0] : -1;
  };

  function draw() {
    const t = theme(root);
    root.style.colorScheme = t.isDark ? "dark" : "light";
    measure();
    at.width = field.clientWidth;
    drawRates(surface(canvas, at.width, RATE_HEIGHT), t, store, at);
    drawLegend(
      legend,
      RATE_LEGEND.map(([word, title, paint]) => [word, title, (g, ...place) => paint(g, t, ...place)]),
    );
    const told = answers.get(selected());
    if (told && (told !== filled?.told || selected() !== filled.id)) {
      filled = { told, id: selected() };
      table.fill(told, filled.id);
    }
    describe();
    announce();
    const { columns } = store;
    Object.assign(root.dataset, { first: columns[0]?.step ?? "", steps: columns.length, left: RATE_LEFT });
    Object.assign(root.dataset, { shown: columns[at.shown]?.step ?? "", told: told?.step ?? "" });
  }

  /** What a step's rates are, and whether the engine stood still before it. */
  function wordsOf(i) {
    const pause = at.pauses.find(([index]) => index === i);
    const before = pause && (pause[2] ? "steps are missing before it" : `after a pause of ${duration(pause[1])}`);
    return [...rateWords(store.columns[i], at.rates[i]), before].filter(Boolean);
  }

  function describe() {
    const i = at.hover >= 0 ? at.hover : at.shown >= 0 ? at.shown : store.columns.length - 1;
    if (i < 0) return say(status, ["Nothing has run yet."]);
    say(status, [make("b", {}, `step ${store.columns[i].step}`), ...wordsOf(i)]);
  }

  const point = (i) => {
    if (i === at.hover) return;
    at.hover = i;
    drawn.ask();
  };
  const pick = (i) => {
    const step = store.columns[i]?.step;
    if (step !== undefined) store.lookAt(step === store.cursor ? -1 : step);
  };
  canvas.addEventListener("pointermove", (event) => point(rateColumnAt(at, event.offsetX)));
  canvas.addEventListener("pointerleave", () => point(-1));
  canvas.addEventListener("click", (event) => {
    const i = rateColumnAt(at, event.offsetX);
    if (i >= 0) pick(i);
  });
  const announce = keyboardGrid(canvas, "Throughput: a column a step", {
    cells: () => [Math.min(1, store.columns.length), store.columns.length],
    here: () => [0, Math.max(0, at.hover >= 0 ? at.hover : at.shown >= 0 ? at.shown : store.columns.length - 1)],
    words: (_, i) => (at.rates[i] ? `step ${store.columns[i].step}: ${wordsOf(i).join(", ")}` : ""),
    move: (_, i) => point(i),
    pick: (_, i) => pick(i),
    leave() {
      store.lookAt(-1);
      point(-1);
    },
  });

  const drawn = drawing(root, draw, READABLE),
    answers = answering(store, "throughput_view", drawn.ask),
    leave = store.subscribe(drawn.ask);
  return () => {
    leave();
    answers.stop();
    drawn.stop();
    root.remove();
  };
}

VIEWS.throughput_view = mountThroughputView;
