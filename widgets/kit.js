// What the views share: colours and patterns, theme, canvas, keyboard grid, status line. Knows no engine.
//
// Text from outside (request ids, prompts, completions) goes into the page as text nodes and through `plain` only.

/** Views by name; each *_view.js adds its own, and the Explorer mounts them: `mount(store, element) -> remove()`. */
export const VIEWS = {};

/** An element with properties and children; strings become text nodes, never markup. */
export function make(tag, props = {}, ...children) {
  const el = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name in el && name !== "role") el[name] = value;
    else el.setAttribute(name, value);
  }
  el.append(...children);
  return el;
}

/** Text whose invisible characters are shown: line ends, tabs, control characters and those that turn the direction. */
export function plain(text) {
  return String(text)
    .replace(/\r?\n/g, "↵")
    .replace(/\t/g, "⇥")
    .replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g, (c) =>
      `‹${c.codePointAt(0).toString(16).padStart(4, "0")}›`);
}

/** `text` as an element that keeps its writing direction to itself. */
export function quote(text, className = "nvx-quote") {
  return make("bdi", { className }, plain(text));
}

// ---- theme -----------------------------------------------------------------------------------------------------------

// After Okabe and Ito: told apart with every kind of colour blindness. Where two meet, a pattern differs too.
const LIGHT = { prefill: "#2a78b8", decode: "#1a9a76", preempted: "#cf5a12", free: "#eef1f4", cached: "#e8a33a",
  used: "#4f9fd6", shared: "#b35c93", waiting: "#b4bcc6", idle: "#c9d0d8", over: "#ffffff" };
const DARK = { prefill: "#4a9edb", decode: "#2fb48e", preempted: "#ee7a33", free: "#23282e", cached: "#d9952f",
  used: "#4a98d0", shared: "#c879a8", waiting: "#5b6570", idle: "#46505a", over: "#0d1216" };

let probe; // one pixel that tells what a CSS colour is
const known = new Map();

/** A CSS colour as [red, green, blue]. */
export function rgb(color) {
  if (!known.has(color)) {
    probe ??= document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    probe.fillStyle = "#fff";
    probe.fillStyle = color;
    probe.fillRect(0, 0, 1, 1);
    known.set(color, [...probe.getImageData(0, 0, 1, 1).data.slice(0, 3)]);
  }
  return known.get(color);
}

/** Two colours mixed: `part` of the second. */
export function mix(a, b, part) {
  const [x, y] = [rgb(a), rgb(b)];
  return `rgb(${x.map((v, i) => Math.round(v + (y[i] - v) * part)).join(",")})`;
}

const themes = new Map();

/** Colours and font of the page around `el`: Jupyter's or VS Code's where there are any (views.css says how). */
export function theme(el) {
  const css = getComputedStyle(el), read = (name) => css.getPropertyValue(name).trim();
  const [bg, fg, muted, line, accent] = ["bg", "fg", "muted", "line", "accent"].map((name) => read(`--nvx-${name}`));
  const key = [bg, fg, muted, line, accent, css.fontFamily].join();
  if (!themes.has(key)) {
    const [r, g, b] = rgb(bg), isDark = 0.3 * r + 0.59 * g + 0.11 * b < 128;
    themes.set(key, { bg, fg, muted, line, accent, font: css.fontFamily, isDark, ...(isDark ? DARK : LIGHT), patterns: {} });
  }
  return themes.get(key);
}

/** A fill of diagonal stripes of `color` on `back` (transparent if left out); `step` px apart, `width` px wide. */
export function stripes(t, color, back = null, { step = 6, width = 2, down = false } = {}) {
  const key = [color, back, step, width, down].join(), scale = 2;
  if (!t.patterns[key]) {
    const tile = make("canvas", { width: step * scale, height: step * scale }), g = tile.getContext("2d");
    g.scale(scale, scale);
    if (back) { g.fillStyle = back; g.fillRect(0, 0, step, step); }
    g.strokeStyle = color;
    g.lineWidth = width;
    for (const shift of [-step, 0, step]) {
      g.beginPath();
      g.moveTo(shift - 1, down ? -1 : step + 1);
      g.lineTo(shift + step + 1, down ? step + 1 : -1);
      g.stroke();
    }
    const pattern = g.createPattern(tile, "repeat");
    pattern.setTransform(new DOMMatrix().scale(1 / scale));
    t.patterns[key] = pattern;
  }
  return t.patterns[key];
}

// ---- canvas ----------------------------------------------------------------------------------------------------------

/** Size a canvas in CSS pixels, sharp on any screen; returns its context, cleared. */
export function surface(canvas, width, height) {
  const ratio = globalThis.devicePixelRatio || 1, w = Math.round(width * ratio), h = Math.round(height * ratio);
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, height);
  return g;
}

/** Fill a rectangle with round corners. */
export function box(g, x, y, width, height, radius, fill) {
  g.fillStyle = fill;
  g.beginPath();
  g.roundRect(x, y, width, height, Math.max(0, Math.min(radius, width / 2, height / 2)));
  g.fill();
}

/** `text` cut so that it fits into `width` pixels, with an ellipsis where something is missing. */
export function fit(g, text, width) {
  if (g.measureText(text).width <= width) return text;
  const letters = [...text];
  let low = 0, high = letters.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (g.measureText(letters.slice(0, middle).join("") + "…").width <= width) low = middle;
    else high = middle - 1;
  }
  return letters.slice(0, low).join("") + "…";
}

/** Call `draw` in the next frame, however often it is asked for; again when the size or the theme changes. */
export function drawing(root, draw) {
  let frame = 0;
  const ask = () => (frame ||= requestAnimationFrame(() => {
    frame = 0;
    try {
      draw();
    } catch (error) {
      fail(root, error);
      throw error;
    }
  }));
  const sizes = new ResizeObserver(ask), themes = new MutationObserver(ask);
  sizes.observe(root);
  const options = { attributes: true, attributeFilter: ["class", "style", "data-jp-theme-light", "data-vscode-theme-kind"] };
  for (const el of [document.documentElement, document.body]) themes.observe(el, options);
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  scheme.addEventListener("change", ask);
  ask();
  return {
    ask,
    stop() {
      cancelAnimationFrame(frame);
      frame = -1;
      sizes.disconnect();
      themes.disconnect();
      scheme.removeEventListener("change", ask);
    },
  };
}

/** Show in a view's place why it can't be drawn. */
export function fail(root, error) {
  root.replaceChildren(make("div", { className: "nvx-error", role: "alert" }, `nvexplore: this view failed: ${plain(error)}`));
}

// ---- parts of a view -------------------------------------------------------------------------------------------------

/** A view's frame: title and legend above, `body`, and below a line that says what is pointed at. */
export function panel(title, body, className) {
  const legend = make("div", { className: "nvx-legend" }), status = make("div", { className: "nvx-line", role: "status" });
  const head = make("div", { className: "nvx-head" }, make("h3", {}, title), legend);
  return { root: make("section", { className: `nvx nvx-panel ${className}`, "aria-label": title }, head, body, status), legend, status };
}

/** Draw the legend with the same strokes as the view: entries are [word, what it means, paint(g, x, y, w, h)]. */
export function drawLegend(el, entries) {
  if (el.childElementCount !== entries.length) {
    el.replaceChildren(...entries.map(([word, title]) => make("span", { title }, make("canvas", { "aria-hidden": "true" }), word)));
  }
  entries.forEach(([, , paint], i) => paint(surface(el.children[i].firstChild, 14, 14), 0, 0, 14, 14));
}

/** Replace what a status line says: strings and elements, joined by dots; the same again is not announced again. */
export function say(line, parts) {
  const box = make("div", {});
  parts.filter(Boolean).forEach((part, i) => box.append(...(i ? [make("span", { className: "nvx-dot", "aria-hidden": "true" }, "·")] : []), part));
  if (box.innerHTML !== line.firstChild?.innerHTML) line.replaceChildren(box);
}

/**
 * Make a canvas a grid for keyboard and screen reader. The cell that is pointed at exists as an element inside the
 * canvas, so that it is announced. cells(): [rows, columns]; words(row, column); move(row, column); pick(row, column);
 * here(): [row, column], where the arrows start.
 */
export function keyboardGrid(canvas, label, { cells, words, move, pick, leave, here }) {
  const cell = make("div", { role: "gridcell", id: `nvx-cell-${Math.random().toString(36).slice(2)}` });
  canvas.append(make("div", { role: "row" }, cell));
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "grid");
  canvas.setAttribute("aria-label", label);
  canvas.setAttribute("aria-activedescendant", cell.id);
  const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], PageUp: [-10, 0], PageDown: [10, 0],
    Home: [0, -Infinity], End: [0, Infinity] };
  const update = () => {
    const [rows, columns] = cells(), [row, column] = here();
    canvas.setAttribute("aria-rowcount", rows);
    canvas.setAttribute("aria-colcount", columns);
    cell.setAttribute("aria-rowindex", row + 1);
    cell.setAttribute("aria-colindex", column + 1);
    const text = rows && columns ? words(row, column) : "";
    if (cell.textContent !== text) cell.textContent = text;
  };
  canvas.addEventListener("keydown", (event) => {
    const step = STEPS[event.key];
    const [row, column] = here(), [rows, columns] = cells();
    if (event.ctrlKey || event.metaKey || event.altKey || !rows || !columns) return;
    if (step) move(clamp(row + step[0], 0, rows - 1), clamp(column + step[1], 0, columns - 1));
    else if (event.key === "Enter" || event.key === " ") pick(row, column);
    else if (event.key === "Escape") leave();
    else return;
    event.preventDefault();
    event.stopPropagation(); // the notebook has its own arrow keys
    update();
  });
  canvas.addEventListener("focus", update);
  return update;
}

/** `value` kept between two others. */
export function clamp(value, low, high) {
  return Math.max(low, Math.min(high, value));
}

/** A count with its noun: "1 token", "12,345 tokens". */
export function count(n, noun) {
  return `${n.toLocaleString("en-US")} ${noun}${n === 1 ? "" : "s"}`;
}

/**
 * Ask the store's host about what is pointed at, once it has been pointed at for a moment; asked again when the
 * engine has moved on. about(kind, id) gives the answer or null and calls `then` when it is there.
 */
export function asking(store, then, { wait = 120 } = {}) {
  let key = "", answer = null, timer = 0, asked = -1;
  const ask = async (kind, id) => {
    const wanted = key;
    asked = store.event;
    const got = await store.host.ask(kind, id);
    timer = 0;
    if (key !== wanted || !got) return;
    answer = got;
    then();
  };
  return {
    about(kind, id) {
      const wanted = `${kind} ${id}`;
      if (wanted !== key) {
        clearTimeout(timer);
        [key, answer, timer, asked] = [wanted, null, 0, -1];
      }
      if (asked !== store.event) timer ||= setTimeout(ask, wait, kind, id);
      return answer;
    },
    stop: () => clearTimeout(timer),
  };
}
