// Run, pause and step buttons, the step counter, the queues and how full the pool is.

import { CACHED, FREE, SHARED, USED } from "./wire.js";
import { box, mix, stripes, surface, theme } from "./paint.js";
import { count, digits, plain } from "./words.js";
import { VIEWS, drawing, make } from "./kit.js";

const ICONS = { run: "M2 1l9 5-9 5z", pause: "M2 1h3v10H2zM7 1h3v10H7z", step: "M1 1l6 5-6 5zM8 1h3v10H8z" };
const BUTTONS = [
  ["run", "Run", "Run until nothing is left to do"],
  ["pause", "Pause", "Stop before the next step"],
  ["step", "Step", "Run one batch"],
];

function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"),
    path = document.createElementNS(svg.namespaceURI, "path");
  svg.setAttribute("viewBox", "0 0 12 12");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/** Mount the view on a store; returns what removes it. */
export function mountControlsView(store, el) {
  const step = make("span", { className: "nvx-step" }),
    facts = make("span", { className: "nvx-facts" });
  const canvas = make("canvas", { role: "img" }),
    used = make("span", { className: "nvx-facts" });
  const status = make("span", { className: "nvx-status", role: "status" }),
    bar = make("span", { className: "nvx-buttons", role: "group", "aria-label": "Engine" });
  let asked = null; // a command that the engine has not answered yet
  const buttons = Object.fromEntries(
    BUTTONS.map(([name, label, title]) => {
      const button = make("button", { type: "button", title, "data-command": name }, icon(name), label);
      button.addEventListener("click", () => {
        if (button.getAttribute("aria-disabled") === "true") return;
        if (name !== "step") asked = name;
        store.host.command(name);
        drawn.ask();
      });
      bar.append(button);
      return [name, button];
    }),
  );
  const root = make(
    "section",
    { className: "nvx nvx-controls", "aria-label": "Engine" },
    bar,
    step,
    facts,
    make("span", { className: "nvx-pool" }, canvas, used),
    status,
  );
  el.append(root);

  function draw() {
    const t = theme(root),
      isRunning = store.status === "running";
    root.style.colorScheme = t.isDark ? "dark" : "light";
    if (asked && isRunning === (asked === "run")) asked = null;
    bar.hidden = !store.hasControls;
    const able = { run: !isRunning && !asked, pause: isRunning && asked !== "pause", step: !isRunning && !asked };
    for (const [name, button] of Object.entries(buttons)) button.setAttribute("aria-disabled", !able[name]);
    step.textContent = count(store.step, "step");
    const fact = (n, word) => [make("b", {}, digits(n)), ` ${word}`];
    facts.replaceChildren(
      ...fact(store.running.length, "running"),
      make("span", { className: "nvx-dot" }, "·"),
      ...fact(store.waiting.length, "waiting"),
    );
    const counts = store.countBlocks(),
      held = counts[USED] + counts[SHARED],
      g = surface(canvas, 120, 10);
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
    used.replaceChildren(make("b", {}, digits(held)), ` of ${digits(store.numBlocks)} blocks in use`);
    const text = asked === "pause" && isRunning ? "pausing …" : plain(store.status);
    if (status.textContent !== text) status.textContent = text;
    status.dataset.running = isRunning;
    root.dataset.step = store.step;
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
