// Draws the part of the schedule that is in sight. `at` is what schedule_view.js has laid out.

import { PREFILL, RECOMPUTE } from "./wire.js";
import { spansOf } from "./spans.js";
import { box, fit, mix, stripes } from "./paint.js";
import { count, digits, plain } from "./words.js";
import { paintCell, paintEnd, paintIdle, paintWaiting } from "./schedule_paint.js";
import { tickEvery } from "./schedule_words.js";

const BAR = 46,
  AXIS = 18;
/** Pixels: the budget and its axis above the rows, a row, and the names left of the columns. */
export const HEADER = BAR + AXIS + 6,
  ROW_HEIGHT = 22,
  LABEL = 112;

const columnX = (at, column) => LABEL + column * at.cw - at.left;
const rowY = (at, row) => HEADER + row * ROW_HEIGHT - at.top;
const gapOf = (at) => (at.cw >= 11 ? 2 : 1);

/** First and last + 1 of the columns in sight, then of the rows. */
function inSight(at) {
  const from = Math.max(0, Math.floor(at.left / at.cw)),
    upper = Math.floor(at.top / ROW_HEIGHT);
  return [
    from,
    Math.min(at.steps, from + Math.ceil(at.width / at.cw) + 1),
    upper,
    Math.min(at.rows.length, upper + Math.ceil(at.height / ROW_HEIGHT) + 1),
  ];
}

function clipped(g, x, y, width, height, draw) {
  g.save();
  g.beginPath();
  g.rect(x, y, width, height);
  g.clip();
  draw();
  g.restore();
}

/** The rows: what each sequence did, its name, and the marks of pointer and selection. */
export function drawRows(g, t, store, at) {
  const lit = store.litSequences(),
    marked = mix(t.bg, t.accent, 0.14),
    pointed = mix(t.bg, t.fg, 0.05);
  clipped(g, 0, HEADER - 2, at.width, at.height, () => {
    const [, , upper, lower] = inSight(at);
    for (let row = upper; row < lower; row++) {
      const fill = lit.has(at.rows[row].id) ? marked : at.hover?.[0] === row ? pointed : null;
      if (fill) box(g, 0, rowY(at, row), at.width, ROW_HEIGHT, 0, fill);
    }
    if (at.hover?.[1] >= 0) box(g, columnX(at, at.hover[1]), 0, at.cw, at.height, 0, pointed);
    clipped(g, LABEL - 2, 0, at.width, at.height, () => {
      drawSpans(g, t, at, lit);
      drawCells(g, t, store, at, lit, marked);
    });
    drawNames(g, t, at, lit);
  });
}

const strength = (lit, id) => (lit.size && !lit.has(id) ? 0.3 : 1);

function drawSpans(g, t, at, lit) {
  const [from, to, upper, lower] = inSight(at);
  for (let row = upper; row < lower; row++) {
    const seq = at.rows[row],
      y = rowY(at, row);
    g.globalAlpha = strength(lit, seq.id);
    for (const [first, last, waits] of spansOf(seq, at.first + at.steps - 1)) {
      const start = Math.max(from - 1, first - at.first),
        end = Math.min(to, last - at.first) + 1,
        paint = waits ? paintWaiting : paintIdle;
      if (end > start)
        paint(g, t, columnX(at, start) + gapOf(at) / 2, y, (end - start) * at.cw - gapOf(at), ROW_HEIGHT);
    }
    const end = seq.ended - at.first + (seq.status === "abort" ? 0 : 1);
    if (seq.ended >= at.first) paintEnd(g, t, seq.status, columnX(at, end), y, at.cw, ROW_HEIGHT);
  }
}

function drawCells(g, t, store, at, lit, marked) {
  const [from, to, upper, lower] = inSight(at),
    rowOf = new Map();
  for (let row = upper; row < lower; row++) rowOf.set(at.rows[row].id, row);
  for (let c = from; c < to; c++) {
    const { seqs, kinds, counts } = store.columns[c],
      x = columnX(at, c);
    for (let i = 0; i < seqs.length; i++) {
      const row = rowOf.get(seqs[i]),
        kind = kinds[i] & 15;
      if (row === undefined) continue;
      const y = rowY(at, row),
        text = kind === PREFILL || kind === RECOMPUTE ? String(counts[i]) : "";
      g.globalAlpha = 1;
      box(g, x, y + 4, at.cw, ROW_HEIGHT - 8, 0, lit.has(seqs[i]) ? marked : t.bg);
      g.globalAlpha = strength(lit, seqs[i]);
      paintCell(g, t, kind, x + gapOf(at) / 2, y + 3, at.cw - gapOf(at), ROW_HEIGHT - 6, text);
    }
  }
  g.globalAlpha = 1;
  if (!(at.hover?.[0] >= 0 && at.hover[1] >= 0)) return;
  g.strokeStyle = t.fg;
  g.lineWidth = 1.5;
  g.strokeRect(columnX(at, at.hover[1]) + 0.5, rowY(at, at.hover[0]) + 2, at.cw - 1, ROW_HEIGHT - 4);
}

function drawNames(g, t, at, lit) {
  const [, , upper, lower] = inSight(at);
  g.textAlign = "left";
  for (let row = upper; row < lower; row++) {
    const seq = at.rows[row],
      isLit = lit.has(seq.id),
      y = rowY(at, row),
      color = { waiting: t.waiting, prefill: t.prefill, decode: t.decode }[seq.status];
    g.globalAlpha = isLit || !lit.size ? 1 : 0.55;
    if (isLit) box(g, 0, y, 3, ROW_HEIGHT, 0, t.accent);
    if (color) box(g, 8, y + ROW_HEIGHT / 2 - 3, 6, 6, 3, color);
    g.font = `${isLit ? 600 : 400} 12px ${t.font}`;
    g.fillStyle = seq.isLive || isLit ? t.fg : t.muted;
    g.fillText(fit(g, plain(seq.name), LABEL - 30), 20, y + ROW_HEIGHT / 2 + 0.5);
  }
  g.globalAlpha = 1;
  const note = at.more ? `and ${count(at.more, "more request")} waiting` : at.rows.length ? "" : "no request yet";
  g.font = `12px ${t.font}`;
  g.fillStyle = t.muted;
  g.fillText(note, 20, rowY(at, at.rows.length) + ROW_HEIGHT / 2);
}

/** Above the rows: each step's budget and how it was spent, the numbers of the steps, and the step that is looked at. */
export function drawBudget(g, t, store, at) {
  const [from, to] = inSight(at),
    most = Math.max(1, store.maxNumBatchedTokens),
    every = tickEvery(at.cw, String(at.first + at.steps).length),
    again = stripes(t, t.preempted, t.prefill, { step: 8, width: 3.2 });
  clipped(g, LABEL - 2, 0, at.width, at.height, () => {
    for (let c = from; c < to; c++) {
      const { step, decode, prefill, recompute } = store.columns[c],
        x = columnX(at, c),
        isChosen = step === store.cursor;
      if (at.hover?.[1] === c) box(g, x, 0, at.cw, HEADER, 0, mix(t.bg, t.fg, 0.05));
      box(g, x + gapOf(at) / 2, 2, at.cw - gapOf(at), BAR, 2, t.free);
      let base = 2 + BAR;
      for (const [tokens, fill] of [
        [decode, t.decode],
        [prefill, t.prefill],
        [recompute, again],
      ]) {
        if (!tokens) continue;
        const tall = Math.max(2, (tokens / most) * BAR);
        base -= tall;
        box(g, x + gapOf(at) / 2, Math.max(2, base), at.cw - gapOf(at), tall, 2, fill);
      }
      if (isChosen) {
        g.strokeStyle = t.accent;
        g.lineWidth = 2;
        g.strokeRect(x, 1, at.cw, at.height - 2);
      }
      if (step % every || x + at.cw / 2 <= LABEL + 8) continue;
      g.font = `${isChosen ? 600 : 400} 10px ${t.font}`;
      g.fillStyle = isChosen ? t.fg : t.muted;
      g.textAlign = "center";
      g.fillText(String(step), x + at.cw / 2, BAR + AXIS / 2 + 4);
    }
  });
  g.font = `10px ${t.font}`;
  g.fillStyle = t.muted;
  g.textAlign = "left";
  g.fillText("token budget", 8, 8);
  g.fillText("step", 8, BAR + AXIS / 2 + 4);
  g.textAlign = "right";
  if (store.maxNumBatchedTokens) g.fillText(digits(store.maxNumBatchedTokens), LABEL - 8, 8);
  g.fillText("0", LABEL - 8, BAR - 2);
  box(g, 0, HEADER - 3, at.width, 1, 0, t.line);
}
