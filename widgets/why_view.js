// Why each request runs, waits or was preempted in the step that is shown, and what would change it.

import { READABLE, VIEWS, answering, drawing, make, panel, say } from "./kit.js";
import { theme } from "./paint.js";
import { SENTENCE_STYLE, keepRows, markSelected, partsText, reference, sentence } from "./sentence.js";
import { WHY_GROUPS, isTold, whyLine, whyMore, whyRows } from "./why_words.js";
import { unpackToken } from "./wire.js";
import { digits } from "./words.js";

const WHY_STYLE = `
.nvx-why-body { max-height: 360px; overflow: auto; scrollbar-width: thin; }
.nvx-why-step { margin: 0 0 4px; }
.nvx-why h4 { margin: 8px 0 2px; font: inherit; font-weight: 600; color: var(--nvx-muted); }
.nvx-why ul { margin: 0; padding: 0; list-style: none; }
.nvx-why li { display: grid; grid-template-columns: 84px minmax(0, 1fr); gap: 0 10px; padding: 4px 2px;
  border-top: 1px solid var(--nvx-line); overflow-wrap: anywhere; }
.nvx-why li[data-lit="true"] { box-shadow: inset 3px 0 0 var(--nvx-accent);
  background: color-mix(in srgb, var(--nvx-accent) 9%, transparent); padding-left: 8px; }
.nvx-why-word { justify-self: start; align-self: start; padding: 0 7px; border: 1px solid var(--nvx-muted);
  border-radius: 9px; color: var(--nvx-muted); font-size: 11px; white-space: nowrap; }
.nvx-why li[data-group="waiting"] .nvx-why-word { border-style: dashed; color: var(--nvx-fg); }
.nvx-why li[data-group="preempted"] .nvx-why-word { border: 2px solid var(--nvx-fg); color: var(--nvx-fg); }
.nvx-why-more, .nvx-why-how { color: var(--nvx-muted); }
.nvx-why-more::before { content: "→ "; }
`;

/** Mount the view on a store; returns what removes it. */
export function mountWhyView(store, el) {
  const step = make("p", { className: "nvx-why-step" }),
    body = make("div", { className: "nvx-why-body" }, step);
  const groups = WHY_GROUPS.map(([name, title]) => {
    const heading = make("h4", {}),
      list = make("ul", { "aria-label": title }),
      more = make("div", { className: "nvx-why-more" });
    const place = make("div", { hidden: true }, heading, list, more);
    body.append(place);
    return { name, title, place, heading, list, more };
  });
  const { root, status } = panel("Why", body, "nvx-why");
  root.prepend(make("style", {}, SENTENCE_STYLE + WHY_STYLE));
  el.append(root);
  let pointed = -1, // the sequence whose row is pointed at, or has the focus
    also = -1, // a selected sequence that is too far behind to be told of unasked
    looks = [], // all that is shown was made from
    last = null; // the newest answer, {told, moment}

  const selected = () => {
    const { kind, id } = store.selection;
    return kind === "sequence" ? id : kind === "token" ? unpackToken(id)[0] : -1;
  };

  function answer() {
    const told = answers.get(also);
    if (told) last = { told, moment: store.moment };
    return told ?? (last?.moment === store.moment ? last.told : null);
  }

  function row(data, group) {
    const { word, subject, by, what, more } = data;
    const who = [reference(store, subject)];
    if (by) who.push(" ← ", reference(store, by));
    const text = make("div", {}, make("div", {}, ...who, " ", ...sentence(store, what)));
    if (more.length) text.append(make("div", { className: "nvx-why-more" }, ...sentence(store, more)));
    const item = make("li", {}, make("span", { className: "nvx-why-word" }, word), text);
    item.dataset.group = group;
    item.dataset.seq = subject[1];
    return item;
  }

  function draw() {
    root.style.colorScheme = theme(root).isDark ? "dark" : "light";
    const id = selected(),
      told = answer();
    if (told && id >= 0 && id !== also && !isTold(told, id)) {
      also = id;
      drawn.ask();
    }
    const { kind, id: chosen } = store.selection,
      now = [told, id, kind, chosen, pointed];
    if (told && now.every((one, i) => one === looks[i])) return;
    looks = now;
    if (!told) {
      step.textContent = "";
      for (const { place } of groups) place.hidden = true;
      say(status, [store.event ? "…" : "Nothing has run yet."]);
      root.dataset.step = "";
      return;
    }
    const [summary] = told.summary;
    step.replaceChildren(
      ...(summary ? [make("b", {}, partsText([summary.subject])), " ", partsText(summary.what)] : ["No step is kept."]),
      ...(summary?.more.length ? [make("span", { className: "nvx-why-how" }, `; ${partsText(summary.more)}`)] : []),
    );
    for (const { name, title, place, heading, list, more } of groups) {
      const rows = whyRows(told, name),
        hidden = whyMore(told, name);
      place.hidden = !rows.length;
      heading.textContent = `${title}: ${digits(rows.length + hidden)}`;
      keepRows(list, rows, (data) => row(data, name));
      more.textContent = hidden ? `${digits(hidden)} more` : "";
      more.hidden = !hidden;
      for (const item of list.children) item.dataset.lit = Number(item.dataset.seq) === id;
    }
    markSelected(root, { kind: id >= 0 ? "sequence" : kind, id: id >= 0 ? id : chosen });
    say(status, whyLine(told, pointed >= 0 ? pointed : id));
    root.dataset.step = told.step;
  }

  const point = (event) => {
    const row = event.type.endsWith("over") || event.type === "focusin" ? event.target.closest("li") : null;
    pointed = Number(row?.dataset.seq ?? -1);
    drawn.ask();
  };
  for (const kind of ["pointerover", "pointerleave", "focusin", "focusout"]) body.addEventListener(kind, point);
  const drawn = drawing(root, draw, READABLE),
    answers = answering(store, "why_view", drawn.ask),
    leave = store.subscribe(drawn.ask);
  return () => {
    leave();
    answers.stop();
    drawn.stop();
    root.remove();
  };
}

VIEWS.why_view = mountWhyView;
