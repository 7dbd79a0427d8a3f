// Which events stop a run: a box for each. Python keeps what is ticked; here it is shown and asked for by name only.

import { make } from "./kit.js";

/** The boxes: their element and what brings them up to date. `store.events` says which there are, and what they mean. */
export function stopBoxes(store) {
  const summary = make("summary", { title: "Runs stop right after a step with one of these" }),
    group = make("span", { role: "group", "aria-label": "Stop at" }),
    root = make("details", { className: "nvx-stops" }, summary, group);
  root.addEventListener("keydown", (event) => event.stopPropagation()); // the notebook has its own keys
  const boxes = new Map();

  function tick() {
    const names = [...boxes].filter(([, box]) => box.checked).map(([name]) => name);
    store.breakpoints = names;
    store.host.stopAt(names);
    store.changed();
  }
  function add(name) {
    const box = make("input", { type: "checkbox", value: name });
    box.addEventListener("change", tick);
    boxes.set(name, box);
    group.append(make("label", { title: store.events[name] }, box, name));
  }
  function update() {
    const names = Object.keys(store.events);
    root.hidden = !store.hasControls || !names.length;
    for (const name of names) if (!boxes.has(name)) add(name);
    for (const [name, box] of boxes) box.checked = store.breakpoints.includes(name);
    const text = `Stop at ${store.breakpoints.join(", ") || "…"}`;
    if (summary.textContent !== text) summary.textContent = text;
  }
  return { root, update };
}
