// Colours, patterns and canvas helpers. Knows no engine, and of the page only its colours and its font.

// After Okabe and Ito: told apart with every kind of colour blindness. Where two meet, a pattern differs too.
const LIGHT = {
  prefill: "#2a78b8",
  decode: "#1a9a76",
  preempted: "#cf5a12",
  free: "#eef1f4",
  cached: "#e8a33a",
  used: "#4f9fd6",
  shared: "#b35c93",
  waiting: "#b4bcc6",
  idle: "#c9d0d8",
  over: "#ffffff",
};
const DARK = {
  prefill: "#4a9edb",
  decode: "#2fb48e",
  preempted: "#ee7a33",
  free: "#23282e",
  cached: "#d9952f",
  used: "#4a98d0",
  shared: "#c879a8",
  waiting: "#5b6570",
  idle: "#46505a",
  over: "#0d1216",
};

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

const THEME_HOLDS = 500; // milliseconds; to ask the page takes it a good part of a drawing
const themes = new Map();
let readThemes = new WeakMap(); // element -> [its theme, when it was read]

/** The page may have other colours now. */
export function forgetThemes() {
  readThemes = new WeakMap();
}

/** Colours and font of the page around `el`: Jupyter's or VS Code's where there are any (views.css says how). */
export function theme(el) {
  const [known, since] = readThemes.get(el) ?? [];
  if (known && performance.now() - since < THEME_HOLDS) return known;
  const found = readTheme(el);
  readThemes.set(el, [found, performance.now()]);
  return found;
}

function readTheme(el) {
  const css = getComputedStyle(el),
    read = (name) => css.getPropertyValue(name).trim();
  const [bg, fg, muted, line, accent] = ["bg", "fg", "muted", "line", "accent"].map((name) => read(`--nvx-${name}`));
  const key = [bg, fg, muted, line, accent, css.fontFamily].join();
  if (!themes.has(key)) {
    const [r, g, b] = rgb(bg),
      isDark = 0.3 * r + 0.59 * g + 0.11 * b < 128;
    themes.set(key, {
      key,
      bg,
      fg,
      muted,
      line,
      accent,
      font: css.fontFamily,
      isDark,
      ...(isDark ? DARK : LIGHT),
      patterns: {},
    });
  }
  return themes.get(key);
}

/** A fill of diagonal stripes of `color` on `back` (transparent if left out); `step` px apart, `width` px wide. */
export function stripes(t, color, back = null, { step = 6, width = 2, down = false } = {}) {
  const key = [color, back, step, width, down].join(),
    scale = 2;
  if (!t.patterns[key]) {
    const tile = Object.assign(document.createElement("canvas"), { width: step * scale, height: step * scale }),
      g = tile.getContext("2d");
    g.scale(scale, scale);
    if (back) {
      g.fillStyle = back;
      g.fillRect(0, 0, step, step);
    }
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
  const ratio = globalThis.devicePixelRatio || 1,
    w = Math.round(width * ratio),
    h = Math.round(height * ratio);
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

/** `text` cut in the middle so that it fits into `width` pixels: names that begin alike mostly differ at their end. */
export function fit(g, text, width) {
  if (g.measureText(text).width <= width) return text;
  const letters = [...text];
  const cut = (n) => `${letters.slice(0, n >> 1).join("")}…${letters.slice(letters.length - n + (n >> 1)).join("")}`;
  let low = 0,
    high = letters.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (g.measureText(cut(middle)).width <= width) low = middle;
    else high = middle - 1;
  }
  return cut(low);
}
