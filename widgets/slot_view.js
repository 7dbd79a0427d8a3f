// The tokens that the shown step ran, from position to block to slot, and the arrays that the runner was given.

import { READABLE, VIEWS, answering, drawing, make, panel, say } from "./kit.js";
import { theme } from "./paint.js";
import { cellGrid, gridCell, markCells } from "./slot_grid.js";
import { batchWords, groupWords, lineCells, paddingCells, sumCells, tokenCells } from "./slot_words.js";
import { packToken, unpackToken } from "./wire.js";
import { count, digits, plain } from "./words.js";

const SLOT_STYLE = `
.nvx-slots-body { container-type: inline-size; display: grid; grid-template-columns: minmax(0, 1fr); gap: 12px; }
.nvx-slots-place { max-height: 300px; overflow: auto; scrollbar-width: thin; }
.nvx-slots-place:focus-within { outline: 1px solid var(--nvx-line); }
.nvx-slots h4 { margin: 0 0 2px; font: inherit; font-weight: 600; color: var(--nvx-muted); }
.nvx-slots table { border-collapse: separate; border-spacing: 0; font-variant-numeric: tabular-nums; }
.nvx-slots thead { position: sticky; top: 0; z-index: 1; }
.nvx-slots th { padding: 2px 8px; background: var(--nvx-bg); text-align: right;
  font-weight: 500; color: var(--nvx-muted); white-space: nowrap; border-bottom: 1px solid var(--nvx-line); }
.nvx-slots td { padding: 1px 8px; text-align: right; white-space: nowrap; cursor: pointer; }
.nvx-slots th:first-child, .nvx-slots td:first-child { text-align: start; }
.nvx-slots td:focus { outline: none; }
.nvx-slots td:focus-visible { outline: 2px solid var(--nvx-accent); outline-offset: -2px; }
.nvx-slots td:hover { background: color-mix(in srgb, var(--nvx-fg) 9%, transparent); }
.nvx-slots td.nvx-quote { max-width: 13em; overflow: hidden; text-overflow: ellipsis; }
.nvx-slots .nvx-slots-group td { padding-top: 5px; border-top: 1px solid var(--nvx-line); text-align: start; }
.nvx-slots .nvx-slots-name { max-width: 22em; overflow: hidden; text-overflow: ellipsis; font-weight: 600;
  text-decoration: underline dotted; text-underline-offset: 2px; }
.nvx-slots .nvx-slots-facts { color: var(--nvx-muted); cursor: default; }
.nvx-slots td.nvx-slots-none { color: var(--nvx-muted); cursor: default; font-style: italic; }
.nvx-slots td.nvx-slot-lit { font-weight: 600; text-decoration: underline; text-underline-offset: 2px; }
.nvx-slots td[aria-selected="true"] { background: color-mix(in srgb, var(--nvx-accent) 16%, transparent);
  box-shadow: inset 0 -2px 0 var(--nvx-accent); }
.nvx-slots-more { padding: 2px 8px; color: var(--nvx-muted); }
@container (max-width: 420px) {
  .nvx-slots th, .nvx-slots td { padding: 1px 3px; }
  .nvx-slots td.nvx-quote { max-width: 6em; }
  .nvx-slots .nvx-slots-name { max-width: 10em; }
}
`;
const TOKEN_HEADS = [
  ["token", "What the token says"],
  ["input_ids", "Its id"],
  ["position", "Its place in the sequence"],
  ["logical", "position // block_size: the place in the block table"],
  ["block", "The physical block there"],
  ["slot", "slot_mapping: where its key and value are written"],
];

/** Mount the view on a store; returns what removes it. */
export function mountSlotView(store, el) {
  const parts = [
    ["Tokens and their slots", "Tokens and their slots"],
    ["Arrays of the batch, one row a sequence", "Arrays of the batch"],
  ].map(([title, label]) => {
    const head = make("thead", {}),
      body = make("tbody", {}),
      table = make("table", { "aria-label": label }, head, body);
    const more = make("div", { className: "nvx-slots-more" }),
      place = make(
        "div",
        { hidden: true },
        make("h4", {}, title),
        make("div", { className: "nvx-slots-place" }, table, more),
      );
    return { head, body, table, more, place };
  });
  const [tokens, arrays] = parts;
  const { root, status } = panel(
    "Slots",
    make("div", { className: "nvx-slots-body" }, tokens.place, arrays.place),
    "nvx-slots",
  );
  root.prepend(make("style", {}, SLOT_STYLE));
  el.append(root);
  let pointed = "", // key of the cell that is pointed at
    first = -1, // the token whose sequence comes first
    seen = "none -1", // the selection that `first` is of
    last = null, // the newest answer, {told, moment}
    marked = [], // what the marks in them depend on
    shown = null; // the answer that the tables hold

  const selection = () => `${store.selection.kind} ${store.selection.id}`;
  const told = (key) => {
    pointed = key;
    drawn.ask();
  };
  const pick = (kind, id) => {
    store.select(kind, id);
    seen = selection(); // what is chosen here stays where it is
    drawn.ask();
  };
  const leave = () => store.select("none", -1);
  for (const part of parts) part.grid = cellGrid(part.table, { told, pick, leave });

  function head(names) {
    return make("tr", {}, ...names.map(([name, title]) => make("th", { scope: "col", title }, name)));
  }

  const asked = (name) => make("span", {}, "request ", make("bdi", {}, plain(name)));

  function groupRows(group) {
    const name = {
      value: group.name,
      says: `row ${group.row}: request ${plain(group.name)}`,
      pick: ["sequence", group.seq_id],
    };
    const row = make(
      "tr",
      { className: "nvx-slots-group" },
      gridCell(`${group.row} name`, name, "nvx-slots-name", asked(group.name)),
      make("td", { className: "nvx-slots-facts", colSpan: 5 }, groupWords(group).join(" · ")),
    );
    return [
      row,
      ...group.slots.map((_, i) => tokenRow(tokenCells(group, i, store.blockSize), `${group.row} ${group.begin + i}`)),
    ];
  }

  function tokenRow([text, ...numbers], key) {
    const says = make("bdi", {}, String(text.value)),
      cells = numbers.map((about, i) => gridCell(`${key} ${i + 1}`, about, about.pick ? "" : "nvx-slots-none"));
    return make("tr", {}, gridCell(`${key} 0`, text, text.pick ? "nvx-quote" : "nvx-slots-none", says), ...cells);
  }

  function drawTokens(answer) {
    const { num_pads: pads, hidden_rows: rows, hidden_tokens: hidden } = answer,
      padding = Math.min(pads, answer.most_padding);
    tokens.head.replaceChildren(head(TOKEN_HEADS));
    tokens.grid.fill(tokens.body, [
      ...answer.groups.flatMap(groupRows),
      ...Array.from({ length: padding }, (_, i) => tokenRow(paddingCells(answer, i), `padding ${i}`)),
    ]);
    tokens.more.textContent = [
      hidden ? `${count(hidden, "token")} not shown${rows ? `, ${count(rows, "whole row")} among them` : ""}` : "",
      pads > padding ? `${count(pads - padding, "more token")} of padding` : "",
    ]
      .filter(Boolean)
      .join("; ");
  }

  function lineRow(line, answer) {
    const who = line.seq_id < 0 ? "padding" : `request ${plain(line.name)}`,
      pick = line.seq_id < 0 ? null : ["sequence", line.seq_id];
    const name = gridCell(
      `line ${line.row} name`,
      { value: who, says: `row ${line.row}: ${who}`, pick },
      pick ? "nvx-slots-name" : "nvx-slots-none",
      make("bdi", {}, `${line.row} ${who}`),
    );
    const cells = lineCells(line, answer).map((about, i) =>
      gridCell(`line ${line.row} ${i}`, about, about.value === -1 ? "nvx-slots-none" : ""),
    );
    return make("tr", {}, name, ...cells);
  }

  function drawArrays(answer) {
    const columns = Math.min(answer.width, answer.most_blocks);
    arrays.head.replaceChildren(
      head([
        ["row", "Row of the batch"],
        ["cu_seqlens_q", "First token of each row, then all"],
        ["cu_seqlens_k", "The same over the contexts"],
        ["context_lens", "Tokens that a row may look at"],
        ...Array.from({ length: columns }, (_, i) => [i ? `[${i}]` : "block_tables[0]", `Logical block ${i}`]),
      ]),
    );
    const [row, ...sums] = answer.total;
    const end = sumCells(row, sums).map((about, i) => gridCell(`end ${i}`, about));
    const all = {
      value: "all",
      says: `the end of the last row: ${batchWords(answer).filter(Boolean).join(", ")}`,
      pick: null,
    };
    arrays.grid.fill(arrays.body, [
      ...answer.lines.map((line) => lineRow(line, answer)),
      make("tr", {}, gridCell("end name", all, "nvx-slots-none", `${row} end`), ...end),
    ]);
    arrays.more.textContent = [
      answer.hidden_lines ? `${count(answer.hidden_lines, "row")} not shown` : "",
      answer.width > columns ? `${columns} of the ${digits(answer.width)} columns of block_tables shown` : "",
    ]
      .filter(Boolean)
      .join("; ");
  }

  function ask() {
    const { kind, id } = store.selection;
    if (seen !== selection()) {
      seen = selection();
      if (kind === "token") first = id;
      else if (kind === "sequence") first = packToken(id, 0);
    }
    const answer = answers.get(first);
    if (answer) last = { answer, moment: store.moment };
    return answer ?? (last?.moment === store.moment ? last.answer : null);
  }

  function draw() {
    root.style.colorScheme = theme(root).isDark ? "dark" : "light";
    const answer = ask(),
      isThere = Boolean(answer?.num_rows);
    for (const { place } of parts) place.hidden = !isThere;
    if (isThere) {
      for (const fill of answer === shown ? [] : [drawTokens, drawArrays]) fill(answer);
      shown = answer;
      const chosen = store.selection,
        lit = store.litBlocks(),
        marks = [answer, chosen.kind, chosen.id, [...lit].join()],
        isNew = marks.some((one, i) => one !== marked[i]);
      for (const { table } of isNew ? parts : []) markCells(table, chosen, lit);
      marked = marks;
    }
    const about = pointed && root.querySelector(`td[data-key="${pointed}"]`)?.about;
    if (!answer) say(status, [store.event ? "…" : "Nothing has run yet."]);
    else if (answer.missing) say(status, [plain(answer.missing)]);
    else say(status, about ? [about.says] : here(answer));
    root.dataset.step = answer?.step ?? "";
  }

  /** The formula of the selected token's slot, else the batch in words. */
  function here(answer) {
    const { kind, id } = store.selection,
      [seqId, position] = kind === "token" ? unpackToken(id) : [-1, 0];
    const group = answer.groups.find((each) => each.seq_id === seqId),
      i = group ? position - group.start - group.begin : -1;
    if (!group?.slots[i] && group?.slots[i] !== 0) return batchWords(answer);
    const cells = tokenCells(group, i, store.blockSize);
    return [cells[1].says, cells[5].says];
  }

  const drawn = drawing(root, draw, READABLE),
    answers = answering(store, "slot_view", drawn.ask),
    quit = store.subscribe(drawn.ask);
  return () => {
    quit();
    answers.stop();
    drawn.stop();
    root.remove();
  };
}

VIEWS.slot_view = mountSlotView;
