// Draws rates and queues over engine time. `at` is what throughput_view.js has laid out.

import { box, mix, stripes } from "./paint.js";
import { duration, roundUp, short } from "./throughput_rates.js";

/** Pixels: left of the bands, above a band, a band, the axis of time. */
export const RATE_LEFT = 58;
const RIGHT = 10,
  TITLE = 18,
  BAND = 58,
  TIME = 22;
export const RATE_HEIGHT = 3 * (TITLE + BAND) + TIME;

const bottomOf = (band) => (band + 1) * (TITLE + BAND);
const xOf = (at, seconds) => RATE_LEFT + (at.total > 0 ? seconds / at.total : 0) * (at.width - RATE_LEFT - RIGHT);

/** Left and right edge of a step. */
export function edgesOf(at, i) {
  return [xOf(at, at.ends[i] - at.work[i]), xOf(at, at.ends[i])];
}

/** The step at a place, or -1 left of them; right of them it is the last one. */
export function rateColumnAt(at, x) {
  if (!at.ends.length || x < RATE_LEFT) return -1;
  const index = at.ends.findIndex((end) => xOf(at, end) > x);
  return index < 0 ? at.ends.length - 1 : index;
}

/** All of it. */
export function drawRates(g, t, store, at) {
  const { columns } = store,
    most = (values) => roundUp(values.reduce((a, b) => Math.max(a, b), 0));
  const tops = [
    most(at.rates.map((rate) => rate.prefill + rate.recompute)),
    most(at.rates.map((rate) => rate.decode)),
    Math.max(2, most(columns.map((column) => Math.max(column.running, column.waiting)))),
  ];
  if (at.hover >= 0) mark(g, at, at.hover, mix(t.bg, t.fg, 0.08));
  if (at.shown >= 0 && store.isPast) mark(g, at, at.shown, mix(t.bg, t.accent, 0.2));
  const titles = ["prefill, tokens/s", "decode, tokens/s", "requests"];
  titles.forEach((title, band) => drawAxis(g, t, at, band, title, tops[band]));
  const again = stripes(t, t.preempted, t.prefill, { step: 8, width: 3.2 });
  area(g, at, 0, tops[0], (i) => at.rates[i].prefill + at.rates[i].recompute, t.prefill);
  area(g, at, 0, tops[0], (i) => at.rates[i].recompute, again);
  area(g, at, 1, tops[1], (i) => at.rates[i].decode, t.decode);
  line(g, at, 2, tops[2], (i) => columns[i].running, t.used, []);
  line(g, at, 2, tops[2], (i) => columns[i].waiting, t.preempted, [4, 3]);
  drawPauses(g, t, at);
  drawTime(g, t, at);
  drawShown(g, t, store, at);
}

function mark(g, at, i, fill) {
  const [left, right] = edgesOf(at, i);
  box(g, left, 0, Math.max(1.5, right - left), bottomOf(2), 0, fill);
}

function drawAxis(g, t, at, band, title, top) {
  const bottom = bottomOf(band);
  g.textBaseline = "middle";
  g.font = `10px ${t.font}`;
  for (const part of [0, 0.5, 1]) {
    const y = Math.round(bottom - part * BAND);
    box(g, RATE_LEFT, y, at.width - RATE_LEFT - RIGHT, 1, 0, part ? mix(t.bg, t.line, 0.6) : t.line);
    g.fillStyle = t.muted;
    g.textAlign = "right";
    g.fillText(short(part * top), RATE_LEFT - 6, y);
  }
  g.textAlign = "left";
  g.fillText(title, RATE_LEFT + 2, bottom - BAND - 8);
}

/** The steps' values as an outline: each from the left edge of its step to the right one. */
function outline(g, at, band, top, value, isOpen) {
  const y = (i) => bottomOf(band) - Math.min(1, value(i) / top) * BAND;
  g.beginPath();
  if (!isOpen) g.moveTo(RATE_LEFT, bottomOf(band));
  for (let i = 0; i < at.ends.length; i++) {
    const [left, right] = edgesOf(at, i);
    if (isOpen && i === 0) g.moveTo(left, y(i));
    else g.lineTo(left, y(i));
    g.lineTo(right, y(i));
  }
  if (!isOpen) g.lineTo(xOf(at, at.total), bottomOf(band));
}

function area(g, at, band, top, value, fill) {
  outline(g, at, band, top, value, false);
  g.fillStyle = fill;
  g.fill();
}

function line(g, at, band, top, value, color, dash) {
  outline(g, at, band, top, value, true);
  g.strokeStyle = color;
  g.lineWidth = 1.8;
  g.lineJoin = "round";
  g.setLineDash(dash);
  g.stroke();
  g.setLineDash([]);
}

/** A line of running or waiting requests in the legend. */
export function paintLine(g, color, dash, x, y, w, h) {
  g.strokeStyle = color;
  g.lineWidth = 2;
  g.setLineDash(dash);
  g.beginPath();
  g.moveTo(x, y + h / 2);
  g.lineTo(x + w, y + h / 2);
  g.stroke();
  g.setLineDash([]);
}

/** Where the engine stood still or steps are missing: the time there is not on the axis. */
export function paintPause(g, t, x, y, h) {
  g.strokeStyle = t.fg;
  g.lineWidth = 1;
  g.setLineDash([1.5, 2.5]);
  g.beginPath();
  g.moveTo(Math.round(x) + 0.5, y);
  g.lineTo(Math.round(x) + 0.5, y + h);
  g.stroke();
  g.setLineDash([]);
}

function drawPauses(g, t, at) {
  g.globalAlpha = 0.7;
  for (const [i] of at.pauses) paintPause(g, t, edgesOf(at, i)[0], TITLE - 4, bottomOf(2) - TITLE + 4);
  g.globalAlpha = 1;
}

function drawTime(g, t, at) {
  const y = bottomOf(2) + TIME / 2 + 1;
  g.font = `10px ${t.font}`;
  g.fillStyle = t.muted;
  g.textAlign = "left";
  g.fillText("time", 8, y);
  const text = `${duration(at.total)} of engine time, pauses left out`;
  if (g.measureText(text).width < at.width - RATE_LEFT - RIGHT - 20) g.fillText("0", RATE_LEFT, y);
  if (!(at.total > 0)) return;
  g.textAlign = "right";
  g.fillText(text, at.width - RIGHT, y);
}

/** Dim what came after a past step, and mark that step. */
function drawShown(g, t, store, at) {
  if (at.shown < 0 || !store.isPast) return;
  const [left, right] = edgesOf(at, at.shown);
  g.globalAlpha = 0.62;
  box(g, right, 0, Math.max(0, at.width - right), bottomOf(2) + 2, 0, t.bg);
  g.globalAlpha = 1;
  g.strokeStyle = t.accent;
  g.lineWidth = 2;
  g.strokeRect(left, 1, Math.max(2, right - left), bottomOf(2) - 1);
}
