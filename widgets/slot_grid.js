// A table of numbers as a grid for keyboard and pointer: a cell says what it is, and picks what it stands for.

import { GRID_MOVES, make } from "./kit.js";
import { clamp } from "./words.js";

/** A cell of a grid. key: its place, the same in the next drawing; about: {value, says, pick}. */
export function gridCell(key, about, className = "", content = String(about.value)) {
  const cell = make("td", { className, tabIndex: -1, role: "gridcell" }, content);
  cell.about = about;
  cell.dataset.key = key;
  if (about.pick) [cell.dataset.kind, cell.dataset.id] = about.pick;
  return cell;
}

/** Make `table` a grid. told(key or "") is called with the cell pointed at, pick(kind, id) when one is chosen. */
export function cellGrid(table, { told, pick, leave }) {
  table.setAttribute("role", "grid");
  let current = ""; // key of the cell that the keyboard is at
  const lines = () =>
    [...table.rows].map((row) => [...row.cells].filter((cell) => cell.about)).filter((row) => row.length);
  const cellOf = (event) => event.target.closest?.("td[data-key]");

  function go(cell) {
    current = cell.dataset.key;
    settle();
    cell.focus();
  }

  /** After a drawing: one cell takes the focus of the keyboard, the one that had it if it is still there. */
  function settle(hadFocus = false) {
    const cells = [...table.querySelectorAll("td[data-key]")];
    const here = cells.find((cell) => cell.dataset.key === current) ?? cells[0];
    for (const cell of cells) cell.tabIndex = cell === here ? 0 : -1;
    if (hadFocus) here?.focus({ preventScroll: true });
  }

  table.addEventListener("keydown", (event) => {
    const cell = cellOf(event),
      by = GRID_MOVES[event.key];
    if (!cell || event.ctrlKey || event.metaKey || event.altKey) return;
    if (by) {
      const rows = lines(),
        row = rows.findIndex((each) => each.includes(cell)),
        next = rows[clamp(row + by[0], 0, rows.length - 1)];
      go(next[clamp(rows[row].indexOf(cell) + by[1], 0, next.length - 1)]);
    } else if (event.key === "Enter" || event.key === " ") choose(cell);
    else if (event.key === "Escape") leave();
    else return;
    event.preventDefault();
    event.stopPropagation(); // the notebook has its own arrow keys
  });
  const choose = (cell) => cell?.about.pick && pick(...cell.about.pick);
  table.addEventListener("click", (event) => {
    const cell = cellOf(event);
    if (!cell) return;
    go(cell);
    choose(cell);
  });
  table.addEventListener("pointerover", (event) => told(cellOf(event)?.dataset.key ?? ""));
  table.addEventListener("pointerleave", () => told(""));
  table.addEventListener("focusin", (event) => told(cellOf(event)?.dataset.key ?? ""));
  table.addEventListener("focusout", () => told(""));
  return {
    /** Replace the rows; the focus stays where it was. */
    fill(body, rows) {
      const hadFocus = table.contains(document.activeElement);
      if (hadFocus) current = document.activeElement.dataset.key ?? current;
      body.replaceChildren(...rows);
      settle(hadFocus);
    },
  };
}

/** Mark the cells of what is selected; the cells of a selected token's or sequence's blocks are lit. */
export function markCells(table, { kind, id }, litBlocks) {
  for (const cell of table.querySelectorAll("td[data-kind]")) {
    const own = Number(cell.dataset.id),
      isBlock = cell.dataset.kind === "block";
    cell.setAttribute("aria-selected", cell.dataset.kind === kind && own === id);
    cell.classList.toggle("nvx-slot-lit", isBlock && litBlocks.has(own));
  }
}
