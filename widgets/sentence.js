// Sentences from Python: their words, and what they name as buttons; and lists of them that keep the focus.

import { make } from "./kit.js";
import { plain } from "./words.js";

/** How the buttons in a sentence look. */
export const SENTENCE_STYLE = `
.nvx .nvx-ref { display: inline-block; max-width: min(100%, 24em); height: auto; overflow: hidden;
  text-overflow: ellipsis; white-space: nowrap; vertical-align: bottom; line-height: inherit; padding: 0 1px;
  border: 0; border-radius: 3px; font-weight: 600;
  text-align: start; text-decoration: underline dotted; text-underline-offset: 2px; color: inherit; }
.nvx .nvx-ref[aria-pressed="true"] { box-shadow: none; text-decoration: underline solid 2px var(--nvx-accent); }
`;

/** A sentence's parts as text; a part that names something is [kind, id, text]. */
export function partsText(parts) {
  return parts.map((part) => plain(typeof part === "string" ? part : part[2])).join("");
}

/** The parts as nodes: what is named selects itself, a step is looked at. */
export function sentence(store, parts) {
  return parts.map((part) => (typeof part === "string" ? plain(part) : reference(store, part)));
}

/** A button for what a sentence names. */
export function reference(store, [kind, id, text]) {
  const title = kind === "step" ? "Look at this step" : `Select this ${kind}`;
  const name = make("bdi", {}, plain(text)),
    button = make("button", { type: "button", className: "nvx-ref", title }, name);
  button.dataset.kind = kind;
  button.dataset.id = id;
  button.addEventListener("click", () => (kind === "step" ? store.lookAt(id) : store.select(kind, id)));
  return button;
}

/** Mark the references to what is selected. */
export function markSelected(root, { kind, id }) {
  for (const button of root.querySelectorAll(".nvx-ref")) {
    if (button.dataset.kind === "step") continue;
    button.setAttribute("aria-pressed", button.dataset.kind === kind && Number(button.dataset.id) === id);
  }
}

/**
 * Make `list` hold an element for each of `rows`, {key, ...}, in their order. One whose row is the same as before
 * stays, and what had the focus has it again.
 */
export function keepRows(list, rows, build) {
  const old = new Map([...list.children].map((el) => [el.dataset.key, el])),
    focused = list.contains(document.activeElement) ? document.activeElement : null;
  const holder = focused && [...list.children].find((el) => el.contains(focused)),
    place = holder ? [...holder.querySelectorAll("button")].indexOf(focused) : -1;
  const made = rows.map((row) => {
    const look = JSON.stringify(row),
      before = old.get(row.key);
    if (before?.look === look) return before;
    const el = build(row);
    el.dataset.key = row.key;
    el.look = look;
    return el;
  });
  if (made.length === list.children.length && made.every((el, i) => el === list.children[i])) return;
  list.replaceChildren(...made);
  if (!holder || document.activeElement === focused) return;
  const again = made.find((el) => el.dataset.key === holder.dataset.key);
  const target = place < 0 ? again : again?.querySelectorAll("button")[place];
  target?.focus({ preventScroll: true });
}
