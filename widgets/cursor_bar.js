// The step that is looked at: a slider over all steps that are kept, one step back and forward, and back to the newest.

import { clamp, count } from "./words.js";
import { make } from "./kit.js";

const ARROWS = { Back: "M9 1v10L2 6z", Forward: "M3 1v10l7-5z" };

/** A small picture of one path, which a screen reader passes over. */
export function icon(path) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"),
    shape = document.createElementNS(svg.namespaceURI, "path");
  svg.setAttribute("viewBox", "0 0 12 12");
  svg.setAttribute("aria-hidden", "true");
  shape.setAttribute("d", path);
  svg.append(shape);
  return svg;
}

/** Which step is shown, in words: [the step, what that means], and the longest that may come of going back from here. */
export function cursorWords({ step, cursor, liveStep, isPast, isLoading }) {
  const widest = `step ${liveStep} of ${liveStep} · loading`;
  if (!isPast) return [count(step, "step"), "", widest];
  return [`step ${cursor} of ${liveStep}`, isLoading ? " · loading" : " · past", widest];
}

/** The bar: its element and what brings it up to date. At the right end of the slider the newest step is followed. */
export function cursorBar(store) {
  const at = () => (store.isPast ? store.cursor : store.liveStep);
  const go = (step) => store.lookAt(step >= store.liveStep ? -1 : Math.max(step, store.oldestStep));
  const slider = make("input", { type: "range", step: 1, "aria-label": "Step that is looked at" });
  slider.addEventListener("input", () => go(Number(slider.value)));
  slider.addEventListener("keydown", (event) => event.stopPropagation()); // the notebook has its own arrow keys
  const move = (name, by) => {
    const title = by < 0 ? "Look at the step before" : "Look at the step after",
      button = make("button", { type: "button", title, "aria-label": name }, icon(ARROWS[name]));
    button.addEventListener("click", () => button.getAttribute("aria-disabled") !== "true" && go(at() + by));
    return button;
  };
  const back = move("Back", -1),
    forward = move("Forward", 1),
    live = make("button", { type: "button", title: "Follow the newest step" }, "Live");
  live.addEventListener("click", () => store.lookAt(-1));
  const root = make("span", { className: "nvx-cursor", role: "group", "aria-label": "Time" });
  root.append(back, slider, forward, live);

  function update() {
    const [oldest, newest] = [Math.max(0, store.oldestStep), Math.max(0, store.liveStep)];
    Object.assign(slider, { min: oldest, max: newest, disabled: store.liveStep <= oldest });
    const value = clamp(at(), oldest, newest);
    if (Number(slider.value) !== value) slider.value = value;
    slider.setAttribute("aria-valuetext", store.liveStep < 0 ? "no step yet" : `step ${value} of ${newest}`);
    back.setAttribute("aria-disabled", at() <= oldest);
    forward.setAttribute("aria-disabled", !store.isPast);
    live.setAttribute("aria-pressed", !store.isPast);
    root.setAttribute("aria-busy", store.isLoading);
  }
  return { root, update };
}
