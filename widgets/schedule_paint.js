// What the schedule view draws for a sequence in a step, the same in the view and in its legend.

import { DECODE, EAGER, GRAPH, PLANNED_AHEAD, PREEMPTED, PREFILL, RECOMPUTE } from "./wire.js";
import { box, mix, stripes, surface } from "./paint.js";

const CORNER = 3,
  STRIP_CELLS = 64;

/** Draw what a sequence did in a step. */
export function paintCell(g, t, kind, x, y, w, h, text = "") {
  const back =
    { [PREFILL]: t.prefill, [DECODE]: t.decode, [PREEMPTED]: t.preempted }[kind] ??
    stripes(t, t.preempted, t.prefill, { step: 8, width: 3.2 });
  box(g, x, y, w, h, CORNER, back);
  if (kind === PREEMPTED && w >= 7) cross(g, x + w / 2, y + h / 2, Math.min(3.2, w / 4), t.over);
  if (!text) return;
  const size = [10, 9, 8].find((px) => {
    g.font = `600 ${px}px ${t.font}`;
    return g.measureText(text).width <= w - 1.5;
  });
  if (!size) return;
  const wide = g.measureText(text).width;
  if (kind === RECOMPUTE) box(g, x + (w - wide) / 2 - 2, y + h / 2 - 6, wide + 4, 12, 3, t.prefill);
  g.fillStyle = t.over;
  g.textAlign = "center";
  g.fillText(text, x + w / 2, y + h / 2 + 0.5);
}

/**
 * `n` neighbouring cells of decoded tokens, as `paintCell` draws one, in columns of `cw` from `x` on: stamped from a
 * strip of them, since nearly all cells look so and round corners take their time.
 */
export function paintDecodes(g, t, n, x, y, cw, gap, h) {
  const ratio = globalThis.devicePixelRatio || 1,
    strip = decodeStrip(t, cw, gap, h, ratio);
  for (let i = 0; i < n; i += STRIP_CELLS) {
    const width = Math.min(STRIP_CELLS, n - i) * cw;
    g.drawImage(strip, 0, 0, width * ratio, h * ratio, x + i * cw, y, width, h);
  }
}

let stamp = { key: "", canvas: null };

function decodeStrip(t, cw, gap, h, ratio) {
  const key = [t.decode, cw, gap, h, ratio].join();
  if (stamp.key === key) return stamp.canvas;
  stamp = { key, canvas: document.createElement("canvas") };
  const g = surface(stamp.canvas, STRIP_CELLS * cw, h);
  for (let i = 0; i < STRIP_CELLS; i++) box(g, i * cw + gap / 2, 0, cw - gap, h, CORNER, t.decode);
  return stamp.canvas;
}

export function paintWaiting(g, t, x, y, w, h) {
  box(g, x, y + h / 2 - 4, w, 8, 4, stripes(t, t.waiting, mix(t.waiting, t.bg, 0.72), { step: 6, width: 1.6 }));
}

/** The budget that a step left. */
export function paintUnused(g, t, x, y, w, h) {
  box(g, x, y, w, h, 3, t.line);
  box(g, x + 1, y + 1, w - 2, h - 2, 2, t.free);
}

/** The step was planned while the one before was being computed: a triangle that points ahead. */
export function paintPlannedAhead(g, t, x, y, w, h) {
  const cx = x + w / 2,
    cy = y + h / 2;
  g.fillStyle = t.muted;
  g.beginPath();
  g.moveTo(cx - 2, cy - 3);
  g.lineTo(cx + 2.5, cy);
  g.lineTo(cx - 2, cy + 3);
  g.fill();
}

/** One CUDA graph: a full square; none although graphs are in use: an empty one. */
export function paintGraph(g, t, isGraph, x, y, w, h) {
  const [left, top] = [x + w / 2 - 2.5, y + h / 2 - 2.5];
  if (isGraph) box(g, left, top, 5, 5, 1, t.muted);
  else {
    g.strokeStyle = t.muted;
    g.lineWidth = 1;
    g.strokeRect(left + 0.5, top + 0.5, 4, 4);
  }
}

/** Up or down at `x`, from `y` to `end`, with a rim that sets it off from what it crosses. */
export function paintArrow(g, t, x, y, end) {
  const back = Math.sign(end - y) * 4,
    lines = [
      [
        [x, y],
        [x, end],
      ],
      [
        [x - 3, end - back],
        [x, end],
        [x + 3, end - back],
      ],
    ];
  stroke(g, t.bg, 4.5, ...lines);
  stroke(g, t.preempted, 1.8, ...lines);
}

export function paintIdle(g, t, x, y, w, h) {
  box(g, x, y + h / 2 - 1, w, 2, 1, t.idle);
}

function stroke(g, color, width, ...lines) {
  g.strokeStyle = color;
  g.lineWidth = width;
  g.lineCap = "round";
  g.beginPath();
  for (const [[x, y], ...rest] of lines) {
    g.moveTo(x, y);
    for (const [u, v] of rest) g.lineTo(u, v);
  }
  g.stroke();
}

function cross(g, x, y, r, color) {
  stroke(
    g,
    color,
    1.8,
    [
      [x - r, y - r],
      [x + r, y + r],
    ],
    [
      [x + r, y - r],
      [x - r, y + r],
    ],
  );
}

export function paintEnd(g, t, status, x, y, w, h) {
  const cx = x + Math.min(w / 2, 9),
    cy = y + h / 2;
  if (status === "abort" || status === "error") cross(g, cx, cy, 3, t.preempted);
  else
    stroke(g, t.muted, 1.8, [
      [cx - 3.5, cy],
      [cx - 1, cy + 3],
      [cx + 4, cy - 3.5],
    ]);
}

/** Flags of the steps that get a mark: that one ran without a graph is told apart only where others had one. */
export function marksOf(columns) {
  const all = columns.reduce((flags, column) => flags | column.flags, 0);
  return all & GRAPH ? all : all & ~EAGER;
}

/** Entries of the legend; marks that no step has are left out. */
export function scheduleLegend({ columns }) {
  const marks = marksOf(columns);
  return [...SCHEDULE_LEGEND, ...MARKS_LEGEND.filter(([, , , flag]) => marks & flag)];
}

const SCHEDULE_LEGEND = [
  ["waiting", "in the waiting queue: holds no blocks", paintWaiting],
  ["prefill", "prompt tokens are computed; the number is how many", (g, t, ...at) => paintCell(g, t, PREFILL, ...at)],
  [
    "recompute",
    "a prefill chunk with tokens that a preemption had thrown away",
    (g, t, ...at) => paintCell(g, t, RECOMPUTE, ...at),
  ],
  ["decode", "one more token", (g, t, ...at) => paintCell(g, t, DECODE, ...at)],
  ["idle", "resident, but not in this step's batch", paintIdle],
  [
    "preempted",
    "lost its blocks to another sequence; an arrow leads to the one that needed them",
    (g, t, ...at) => paintCell(g, t, PREEMPTED, ...at),
  ],
  ["finished", "has left the engine", (g, t, ...at) => paintEnd(g, t, "stop", ...at)],
  ["aborted", "has left the engine before its end: aborted, or failed", (g, t, ...at) => paintEnd(g, t, "abort", ...at)],
  ["unused", "the part of the token budget that a step left", paintUnused],
];
const MARKS_LEGEND = [
  ["planned ahead", "while the step before was being computed", paintPlannedAhead, PLANNED_AHEAD],
  ["graph", "the step ran as one CUDA graph", (g, t, ...at) => paintGraph(g, t, true, ...at), GRAPH],
  ["eager", "no CUDA graph, though graphs are in use", (g, t, ...at) => paintGraph(g, t, false, ...at), EAGER],
];
