// The latency of each request, as a table. Knows no canvas.

import { make } from "./kit.js";
import { keepRows, reference } from "./sentence.js";
import { duration } from "./throughput_rates.js";
import { count, digits } from "./words.js";

const NO_PAUSES = "pauses of the engine left out",
  LATENCY_COLUMNS = [
    ["request", "Its id"],
    ["first token", `From its arrival to its first token, ${NO_PAUSES}`],
    ["between tokens", `Mean time from one token to the next, ${NO_PAUSES}`],
    ["longest", `The longest time between two tokens, ${NO_PAUSES}`],
    ["tokens", "Generated so far"],
  ];

/** The table, empty, in a place of its own; fill(answer, selected) shows an answer, null: none. */
export function latencyTable(store) {
  const body = make("tbody", {}),
    note = make("div", { className: "nvx-rate-note" });
  const head = LATENCY_COLUMNS.map(([word, title]) => make("th", { scope: "col", title }, word));
  const table = make("table", { "aria-label": "Latency by request" }, make("thead", {}, make("tr", {}, ...head)), body);
  const place = make("div", { hidden: true }, make("div", { className: "nvx-rate-table" }, table), note);
  return {
    place,
    fill(told, selected) {
      const rows = byProgress(told?.requests ?? [], store.sequences);
      place.hidden = !rows.length;
      const most = Math.max(...rows.map((row) => row.first ?? row.waited ?? 0)),
        slowest = Math.max(...rows.map((row) => row.mean ?? 0));
      keepRows(
        body,
        rows.map((row) => {
          const parts = [part(row.first ?? row.waited, most), part(row.mean, slowest)];
          return { ...row, key: String(row.id), parts };
        }),
        (row) => buildRow(store, row),
      );
      for (const tr of body.children) {
        const isLit = Number(tr.dataset.seq) === selected;
        tr.dataset.lit = isLit;
        tr.querySelector("button").setAttribute("aria-pressed", isLit);
      }
      note.textContent = noteWords(told?.num_hidden ?? 0);
    },
  };
}

/** Running requests first, then those with a token, last those that wait for their first; each kind as it came. */
export function byProgress(rows, sequences) {
  const isRunning = ({ id, is_live }) => is_live && !["waiting", undefined].includes(sequences.get(id)?.status);
  const kindOf = (row) => (isRunning(row) ? 0 : row.num_tokens ? 1 : 2);
  return [0, 1, 2].flatMap((kind) => rows.filter((row) => kindOf(row) === kind));
}

/** What the times in the table are, and how many requests are not in it. */
export function noteWords(numHidden) {
  const hidden = numHidden ? `; ${count(numHidden, "other request")} not shown` : "";
  return `Engine time: ${NO_PAUSES}${hidden}`;
}

/** How much of the largest value, in percent. */
function part(value, most) {
  return value === null || !(most > 0) ? 0 : Math.round((100 * value) / most);
}

/** Time to first token in words: also of a request that has none yet. */
export function firstWords({ first, waited, num_tokens, is_live }) {
  if (first !== null) return duration(first);
  if (num_tokens) return "not kept";
  if (!is_live) return "none";
  return waited === null ? "none yet" : `none in ${duration(waited)}`;
}

function buildRow(store, row) {
  const bar = (text, percent) => {
    const cell = make("td", {}, make("span", { className: "nvx-rate-bar", "aria-hidden": "true" }), text);
    cell.firstChild.style.width = `${percent}%`;
    return cell;
  };
  const tr = make(
    "tr",
    {},
    make("th", { scope: "row" }, reference(store, ["sequence", row.id, row.name])),
    bar(firstWords(row), row.parts[0]),
    bar(row.mean === null ? "-" : duration(row.mean), row.parts[1]),
    make("td", {}, row.longest === null ? "-" : duration(row.longest)),
    make("td", {}, digits(row.num_tokens)),
  );
  tr.dataset.seq = row.id;
  tr.dataset.live = row.is_live;
  return tr;
}
