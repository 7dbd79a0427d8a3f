// Above the rows of the schedule: how each step spent its token budget, who waited, how it ran, and its number.

import { box, mix, stripes } from "./paint.js";
import { marksOf, paintGraph, paintPlannedAhead } from "./schedule_paint.js";
import { AXIS, BAR, HEADER, LABEL, LANE, MARKS, clipped, columnX, gapOf, inSight } from "./schedule_place.js";
import { axisNumbers } from "./schedule_words.js";
import { EAGER, GRAPH, PLANNED_AHEAD } from "./wire.js";
import { digits } from "./words.js";

const TOP = 2,
  LABEL_SPACE = 6,
  NUMBER_WIDTH = 7, // of a bold digit on the axis, at most
  LANE_Y = TOP + BAR + 3,
  MARKS_Y = LANE_Y + LANE,
  AXIS_Y = MARKS_Y + MARKS + AXIS / 2;

/** Draw it for the columns in sight. */
export function drawBudget(g, t, store, at) {
  const [from, to] = inSight(at),
    marks = marksOf(store.columns),
    most = store.columns.reduce((n, { waiting }) => Math.max(n, waiting), 0);
  clipped(g, LABEL - 2, 0, at.width, at.height, () => {
    for (let c = from; c < to; c++) {
      const column = store.columns[c],
        x = columnX(at, c),
        inner = [x + gapOf(at) / 2, at.cw - gapOf(at)],
        isShown = c === at.shown;
      if (at.hover?.[1] === c) box(g, x, 0, at.cw, HEADER - 3, 0, mix(t.bg, t.fg, 0.05));
      if (isShown && store.isPast) box(g, x, 0, at.cw, HEADER - 3, 0, mix(t.bg, t.accent, 0.16));
      drawBar(g, t, store, column, ...inner);
      drawLane(g, t, column, most, ...inner);
      drawMarks(g, t, column.flags & marks, ...inner);
    }
    g.font = `10px ${t.font}`;
    g.fillStyle = t.muted;
    g.textAlign = "center";
    for (const { text, x } of axisNumbers(at, store.columns, NUMBER_WIDTH).others) g.fillText(text, x, AXIS_Y);
  });
  drawLabels(g, t, store, at, most);
  box(g, 0, HEADER - 3, at.width, 1, 0, t.line);
}

/** The number of the shown step, on a plate above everything else: its column may be narrower than the number. */
export function drawShownNumber(g, t, store, at) {
  const { shown } = axisNumbers(at, store.columns, NUMBER_WIDTH);
  if (!shown) return;
  g.font = `600 10px ${t.font}`;
  g.textAlign = "center";
  box(g, shown.x - shown.half, AXIS_Y - 7, 2 * shown.half, 13, 3, store.isPast ? mix(t.bg, t.accent, 0.16) : t.bg);
  g.fillStyle = t.fg;
  g.fillText(shown.text, shown.x, AXIS_Y + 0.5);
}

/** From the bottom: decode, prefill, recompute; what is left was not used. */
function drawBar(g, t, store, { decode, prefill, recompute }, x, width) {
  const most = Math.max(1, store.maxNumBatchedTokens),
    again = recompute ? stripes(t, t.preempted, t.prefill, { step: 8, width: 3.2 }) : "";
  box(g, x, TOP, width, BAR, 2, t.free);
  let base = TOP + BAR;
  for (const [tokens, fill] of [
    [decode, t.decode],
    [prefill, t.prefill],
    [recompute, again],
  ]) {
    if (!tokens) continue;
    const tall = Math.max(2, (tokens / most) * BAR),
      top = Math.max(TOP, base - tall);
    box(g, x, top, width, tall, 2, fill);
    if (base < TOP + BAR && tall > 3) box(g, x, base - 1, width, 1, 0, t.bg);
    base = top;
  }
}

/** As high as many wait, with their number where there is room for it. */
function drawLane(g, t, { waiting }, most, x, width) {
  if (!waiting) return;
  const tall = Math.max(3, (waiting / most) * LANE),
    text = String(waiting);
  const isTooLong = text.length * 4 > width - 3; // a digit is wider than that: to measure it takes its time
  box(g, x, LANE_Y + LANE - tall, width, tall, 1, mix(t.waiting, t.bg, 0.35));
  if (isTooLong) return;
  g.font = `600 9px ${t.font}`;
  if (g.measureText(text).width > width - 3) return;
  g.fillStyle = t.fg;
  g.textAlign = "center";
  g.fillText(text, x + width / 2, LANE_Y + LANE / 2 + 0.5);
}

function drawMarks(g, t, flags, x, width) {
  const isAhead = flags & PLANNED_AHEAD,
    hasGraphs = flags & (GRAPH | EAGER),
    part = isAhead && hasGraphs ? width / 2 : width;
  if (isAhead) paintPlannedAhead(g, t, x, MARKS_Y, part, MARKS);
  if (hasGraphs) paintGraph(g, t, Boolean(flags & GRAPH), x + width - part, MARKS_Y, part, MARKS);
}

function drawLabels(g, t, store, at, most) {
  g.font = `10px ${t.font}`;
  g.fillStyle = t.muted;
  const budget = store.maxNumBatchedTokens ? digits(store.maxNumBatchedTokens) : "";
  drawPair(g, 8, ["token budget", "budget", ""], [budget]);
  drawPair(g, BAR - 2, [""], ["0"]);
  drawPair(g, LANE_Y + LANE / 2, ["waiting"], most ? [`most ${digits(most)}`, digits(most), ""] : [""]);
  drawPair(g, AXIS_Y, ["step"], [""]);
}

/** A text at each end of the labels' room: the first of each that leave a space between them. */
function drawPair(g, y, lefts, rights) {
  const room = LABEL - 16 - LABEL_SPACE,
    fits = (left, right) => g.measureText(left).width + g.measureText(right).width <= room,
    pairs = lefts.flatMap((left) => rights.map((right) => [left, right])),
    [left, right] = pairs.find((pair) => fits(...pair)) ?? pairs.at(-1);
  g.textAlign = "left";
  g.fillText(left, 8, y);
  g.textAlign = "right";
  g.fillText(right, LABEL - 8, y);
}
