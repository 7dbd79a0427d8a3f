// Run, pause and step buttons, the step that is looked at, the queues and how full the pool is.

import { CACHED, FREE, SHARED, USED } from "./wire.js";
import { box, mix, stripes, surface, theme } from "./paint.js";
import { digits, plain } from "./words.js";
import { cursorBar, cursorWords, icon } from "./cursor_bar.js";
import { VIEWS, drawing, make } from "./kit.js";
import { stopBoxes } from "./stop_boxes.js";

const ICONS = { run: "M2 1l9 5-9 5z", pause: "M2 1h3v10H2zM7 1h3v10H7z", step: "M1 1l6 5-6 5zM8 1h3v10H8z" };
const BUTTONS = [
  ["run", "Run", "Run until nothing is left to do"],
  ["pause", "Pause", "Stop before the next step"],
  ["step", "Step", "Run one batch"],
];

/** A number with room for the digits of `most`: at another step it is another, and nothing beside it moves. */
function roomy(n, most) {
  const el = make("b", {}, digits(n));
  el.style.minWidth = `${digits(most).length}ch`;
  return el;
}

/** Mount the view on a store; returns what removes it. */
export function mountControlsView(store, el) {
  const step = make("span", { className: "nvx-step" }),
    facts = make("span", { className: "nvx-facts" });
  const canvas = make("canvas", { role: "img" }),
    used = make("span", { className: "nvx-facts" });
  const status = make("span", { className: "nvx-status", role: "status" }),
    notice = make("span", { className: "nvx-notice", role: "alert" }),
    bar = make("span", { className: "nvx-buttons", role: "group", "aria-label": "Engine" });
  let counted = "", // what facts, numbers and bar show
    mostWaiting = 0; // in any step seen so far
  const buttons = Object.fromEntries(
    BUTTONS.map(([name, label, title]) => {
      const button = make("button", { type: "button", title, "data-command": name }, icon(ICONS[name]), label);
      button.addEventListener("click", () => {
        if (button.getAttribute("aria-disabled") === "true") return;
        store.press(name);
        answer(); // at once: the next frame may be long in coming
      });
      bar.append(button);
      return [name, button];
    }),
  );
  const cursor = cursorBar(store),
    stops = stopBoxes(store);
  const root = make(
    "section",
    { className: "nvx nvx-controls", "aria-label": "Engine" },
    bar,
    stops.root,
    step,
    facts,
    make("span", { className: "nvx-pool" }, canvas, used),
    status,
    cursor.root,
    notice,
  );
  el.append(root);

  /** What the buttons and the line beside them say now. */
  function answer() {
    const isRunning = store.status === "running",
      { asked } = store;
    const able = { run: !isRunning && !asked, pause: isRunning && asked !== "pause", step: !isRunning && !asked };
    for (const [name, button] of Object.entries(buttons)) button.setAttribute("aria-disabled", !able[name]);
    const text = asked === "pause" && isRunning ? "pausing …" : plain(store.status);
    if (status.textContent !== text) status.textContent = text;
    status.dataset.running = isRunning;
  }

  function draw() {
    const t = theme(root);
    root.style.colorScheme = t.isDark ? "dark" : "light";
    bar.hidden = !store.hasControls;
    answer();
    cursor.update();
    stops.update();
    const told = [store.notice, store.refused].filter(Boolean).map(plain).join("; ");
    if (notice.textContent !== told) notice.textContent = told;
    const [where, meaning, widest] = cursorWords(store);
    if (step.textContent !== where + meaning) step.replaceChildren(where, make("span", {}, meaning));
    step.dataset.widest = widest; // room for it is kept (views.css): what comes after it stays where it is
    root.dataset.past = store.isPast;
    const counts = store.countBlocks(),
      held = counts[USED] + counts[SHARED],
      shows = [store.running.length, store.waiting.length, ...counts, t.key, globalThis.devicePixelRatio].join();
    Object.assign(root.dataset, { step: store.step, cursor: store.cursor });
    if (shows === counted) return;
    counted = shows;
    mostWaiting = store.columns.reduce((most, column) => Math.max(most, column.waiting), mostWaiting);
    facts.replaceChildren(
      roomy(store.running.length, store.maxNumSeqs),
      " running",
      make("span", { className: "nvx-dot" }, "·"),
      roomy(store.waiting.length, mostWaiting),
      " waiting",
    );
    const g = surface(canvas, 120, 10);
    let x = 0;
    for (const [state, fill] of [
      [USED, t.used],
      [SHARED, t.shared],
      [CACHED, stripes(t, t.cached, mix(t.cached, t.bg, 0.55))],
      [FREE, t.free],
    ]) {
      const w = store.numBlocks ? (counts[state] / store.numBlocks) * 120 : state === FREE ? 120 : 0;
      box(g, x, 0, w, 10, 0, fill);
      x += w;
    }
    canvas.setAttribute("aria-label", `${held} of ${store.numBlocks} blocks in use, ${counts[CACHED]} cached`);
    used.replaceChildren(roomy(held, store.numBlocks), ` of ${digits(store.numBlocks)} blocks in use`);
  }

  const drawn = drawing(root, draw),
    leave = store.subscribe(drawn.ask);
  return () => {
    leave();
    drawn.stop();
    root.remove();
  };
}

VIEWS.controls_view = mountControlsView;
