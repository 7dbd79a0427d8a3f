// What admitted requests took from the prefix cache, and both texts where they part. Part of the prefix view.

import { make } from "./kit.js";
import { keepRows, reference, sentence } from "./sentence.js";
import { digits, plain } from "./words.js";

export const MISS_STYLE = `
.nvx-miss h4 { margin: 10px 0 2px; font: inherit; font-weight: 600; color: var(--nvx-muted); }
.nvx-miss ul { margin: 0; padding: 0; list-style: none; }
.nvx-miss li { padding: 4px 2px; border-top: 1px solid var(--nvx-line); overflow-wrap: anywhere; }
.nvx-miss-more { color: var(--nvx-muted); }
.nvx-miss-more::before { content: "→ "; }
.nvx-miss dl { display: grid; grid-template-columns: fit-content(40%) minmax(0, 1fr); gap: 1px 10px;
  margin: 3px 0 2px 14px; }
.nvx-miss { container-type: inline-size; }
@container (max-width: 300px) { .nvx-miss dl { grid-template-columns: minmax(0, 1fr); } }
/* JupyterLab floats these in an output and gives them a share of its width; here the grid places them. */
.nvx-miss dl > dt, .nvx-miss dl > dd { float: none; width: auto; margin: 0; padding: 0; }
.nvx-miss dl > dt { color: var(--nvx-muted); }
.nvx-miss dl > dd { unicode-bidi: isolate; white-space: pre-wrap;
  font-family: var(--jp-code-font-family, var(--vscode-editor-font-family, ui-monospace, monospace)); }
.nvx-miss mark { padding: 0 1px; color: inherit; font-weight: 700;
  text-decoration: underline solid 2px var(--nvx-accent); text-underline-offset: 2px; border-radius: 2px;
  background: color-mix(in srgb, var(--nvx-accent) 18%, transparent); }
`;

/** The text of one side; the token that differs is marked. */
function side({ position, ids, mark, parts }) {
  const [before, token, after] = mark < 0 ? [parts[0], "", ""] : parts;
  const text = make("dd", {}, make("bdi", {}, plain(before)));
  if (mark >= 0) {
    const title = `token ${ids[mark]} at position ${position + mark}`;
    text.append(make("mark", { title }, plain(token) || `‹token ${ids[mark]}›`), make("bdi", {}, plain(after)));
  }
  return text;
}

function admission(store, { subject, what, more, texts }) {
  const item = make("li", {}, make("div", {}, reference(store, subject), " ", ...sentence(store, what)));
  item.append(make("div", { className: "nvx-miss-more" }, ...sentence(store, more)));
  if (texts.length) {
    const pairs = texts.flatMap((text) => [make("dt", {}, ...sentence(store, text.label)), side(text)]);
    item.append(make("dl", {}, ...pairs));
  }
  return item;
}

/** The list of admissions: an element, and what draws an answer into it. */
export function admissionList(store) {
  const heading = make("h4", {}),
    list = make("ul", {}),
    more = make("div", { className: "nvx-miss-more", hidden: true });
  const el = make("div", { className: "nvx-miss", hidden: true }, heading, list, more);
  return {
    el,
    /** name: of the selected request, whose last admission this is; null: all of the step that is shown. */
    draw(told, name) {
      const { admitted, admitted_step: step, num_admitted: all } = told;
      el.hidden = !admitted.length && name === null;
      const when = `step ${step}`;
      if (name === null) heading.textContent = `Admitted in ${when}: ${digits(all)}`;
      else if (admitted.length) heading.textContent = `request ${plain(name)}: admitted in ${when}`;
      else heading.textContent = `request ${plain(name)} has not been admitted yet`;
      const rows = admitted.map((each) => ({ ...each, key: String(each.subject[1]) }));
      keepRows(list, rows, (row) => admission(store, row));
      more.hidden = all <= admitted.length;
      more.textContent = `${digits(all - admitted.length)} more`;
    },
  };
}
