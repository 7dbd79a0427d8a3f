// Small pictures that seldom change, as images. A canvas each would be a layer of its own for the page, which takes its
// time in every frame in which anything changes: a page of views has hundreds of them.

import { surface } from "./paint.js";

const MOST_KEPT = 400;
const kept = new Map(); // look -> address; what is drawn again and again

/** An image that a screen reader passes over; `paintPicture` fills it. */
export function picture(width, height) {
  const el = document.createElement("img");
  el.alt = "";
  el.decoding = "sync"; // with the words beside it
  el.style.width = `${width}px`;
  el.style.height = `${height}px`;
  return Object.assign(el, { size: [width, height] });
}

/** Show what `paint(g, x, y, w, h)` draws, unless the image shows it already. look: all that it depends on. */
export function paintPicture(el, look, paint) {
  const key = [look, globalThis.devicePixelRatio, ...el.size].join();
  if (el.look === key) return;
  el.look = key;
  if (!kept.has(key)) {
    if (kept.size >= MOST_KEPT) kept.clear();
    const canvas = document.createElement("canvas");
    paint(surface(canvas, ...el.size), 0, 0, ...el.size);
    kept.set(key, canvas.toDataURL());
  }
  el.src = kept.get(key);
}
