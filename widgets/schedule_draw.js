// Draws the part of the schedule that is in sight. `at` is what schedule_view.js has laid out.

import { DECODE, PREEMPTED } from "./wire.js";
import { leftBefore, spansOf } from "./spans.js";
import { box, fit, mix } from "./paint.js";
import { count, plain } from "./words.js";
import { paintArrow, paintCell, paintDecodes, paintEnd, paintIdle, paintWaiting } from "./schedule_paint.js";
import { HEADER, LABEL, ROW_HEIGHT, clipped, columnX, gapOf, inSight, rowY } from "./schedule_place.js";

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
      if (store.isPast && at.shown >= 0) box(g, columnX(at, at.shown), 0, at.cw, at.height, 0, marked);
      drawSpans(g, t, at, lit);
      drawCells(g, t, store, at, lit, marked);
      drawArrows(g, t, store, at, lit);
    });
    drawNames(g, t, store, at, lit);
  });
}

/** Dim what came after a past step, and frame that step. */
export function drawMoment(g, t, store, at) {
  if (at.shown < 0) return;
  const x = columnX(at, at.shown);
  clipped(g, LABEL - 2, 0, at.width, at.height, () => {
    if (!store.isPast) return box(g, x + 1, HEADER - 4, at.cw - 2, 2, 0, t.accent);
    g.globalAlpha = 0.62;
    box(g, x + at.cw, 0, Math.max(0, at.width - x - at.cw), at.height, 0, t.bg);
    g.globalAlpha = 1;
    g.strokeStyle = t.accent;
    g.lineWidth = 2;
    g.strokeRect(x, 1, at.cw, at.height - 2);
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
    const end = seq.ended - at.first + (leftBefore(seq) ? 0 : 1);
    if (seq.ended >= at.first) paintEnd(g, t, seq.status, columnX(at, end), y, at.cw, ROW_HEIGHT);
  }
}

function drawCells(g, t, store, at, lit, marked) {
  const [from, to, upper, lower] = inSight(at),
    rowOf = new Map();
  for (let row = upper; row < lower; row++) rowOf.set(at.rows[row].id, row);
  const runs = Array.from({ length: Math.max(0, lower - upper) }, () => []), // of each row, [first, last + 1] columns
    cells = [];
  for (let c = from; c < to; c++) {
    const { seqs, kinds, counts } = store.columns[c];
    for (let i = 0; i < seqs.length; i++) {
      const row = rowOf.get(seqs[i]);
      if (row === undefined) continue;
      const found = runs[row - upper],
        run = found[found.length - 1];
      if (run?.[1] === c) run[1] = c + 1;
      else found.push([c, c + 1]);
      cells.push([row, c, kinds[i] & 15, counts[i]]);
    }
  }
  g.globalAlpha = 1;
  runs.forEach((found, i) => {
    g.fillStyle = lit.has(at.rows[upper + i].id) ? marked : t.bg;
    for (const [first, end] of found)
      g.fillRect(columnX(at, first), rowY(at, upper + i) + 4, (end - first) * at.cw, ROW_HEIGHT - 8);
  });
  const decodes = runs.map(() => []); // of each row, [first, last + 1] columns
  for (const [row, c, kind, tokens] of cells) {
    if (kind === DECODE) {
      const found = decodes[row - upper],
        run = found[found.length - 1];
      if (run?.[1] === c) run[1] = c + 1;
      else found.push([c, c + 1]);
      continue;
    }
    const [x, y] = [columnX(at, c) + gapOf(at) / 2, rowY(at, row) + 3];
    g.globalAlpha = strength(lit, at.rows[row].id);
    paintCell(g, t, kind, x, y, at.cw - gapOf(at), ROW_HEIGHT - 6, kind === PREEMPTED ? "" : String(tokens));
  }
  decodes.forEach((found, i) => {
    g.globalAlpha = strength(lit, at.rows[upper + i].id);
    for (const [first, end] of found) {
      const place = [columnX(at, first), rowY(at, upper + i) + 3, at.cw, gapOf(at), ROW_HEIGHT - 6];
      paintDecodes(g, t, end - first, ...place);
    }
  });
  g.globalAlpha = 1;
  if (!(at.hover?.[0] >= 0 && at.hover[1] >= 0)) return;
  g.strokeStyle = t.fg;
  g.lineWidth = 1.5;
  g.strokeRect(columnX(at, at.hover[1]) + 0.5, rowY(at, at.hover[0]) + 2, at.cw - 1, ROW_HEIGHT - 4);
}

/** From each preempted sequence to the one that needed its blocks, in the column of the step. */
function drawArrows(g, t, store, at, lit) {
  const [from, to] = inSight(at),
    rowOf = new Map(at.rows.map((seq, row) => [seq.id, row])),
    middle = (row) => rowY(at, row) + ROW_HEIGHT / 2;
  for (let c = from; c < to; c++) {
    preemptionsOf(store.columns[c]).forEach(([victim, cause], i, all) => {
      const rows = [rowOf.get(victim), rowOf.get(cause)];
      if (rows.includes(undefined)) return;
      g.globalAlpha = lit.has(cause) ? 1 : strength(lit, victim);
      const shift = ((i + 1) / (all.length + 1)) * at.cw,
        down = Math.sign(rows[1] - rows[0]) * (ROW_HEIGHT / 2 - 4);
      paintArrow(g, t, columnX(at, c) + shift, middle(rows[0]) + down, middle(rows[1]) - down);
    });
  }
  g.globalAlpha = 1;
}

/** [victim, cause] of each preemption in a step whose cause is another sequence. */
export function preemptionsOf({ seqs, kinds, starts }) {
  const found = [];
  for (let i = 0; i < seqs.length; i++)
    if ((kinds[i] & 15) === PREEMPTED && starts[i] >= 0 && starts[i] !== seqs[i]) found.push([seqs[i], starts[i]]);
  return found;
}

function drawNames(g, t, store, at, lit) {
  const [, , upper, lower] = inSight(at);
  g.textAlign = "left";
  for (let row = upper; row < lower; row++) {
    const seq = at.rows[row],
      isLit = lit.has(seq.id),
      y = rowY(at, row),
      now = store.sequences.get(seq.id), // at the step that is shown
      color = { waiting: t.waiting, prefill: t.prefill, decode: t.decode }[now?.status];
    g.globalAlpha = isLit || !lit.size ? 1 : 0.55;
    if (isLit) box(g, 0, y, 3, ROW_HEIGHT, 0, t.accent);
    if (color) box(g, 8, y + ROW_HEIGHT / 2 - 3, 6, 6, 3, color);
    g.font = `${isLit ? 600 : 400} 12px ${t.font}`;
    g.globalAlpha = 1; // a name stays readable, whatever is lit
    g.fillStyle = isLit || (now?.isLive && !lit.size) ? t.fg : t.muted;
    g.fillText(fit(g, plain(seq.name), LABEL - 30), 20, y + ROW_HEIGHT / 2 + 0.5);
  }
  g.globalAlpha = 1;
  const note = at.more ? `and ${count(at.more, "more request")} waiting` : at.rows.length ? "" : "no request yet";
  g.font = `12px ${t.font}`;
  g.fillStyle = t.muted;
  g.fillText(note, 20, rowY(at, at.rows.length) + ROW_HEIGHT / 2);
}
