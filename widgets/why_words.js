// What the why view lists, from Python's answer. Knows no DOM.

import { partsText } from "./sentence.js";
import { count, plain } from "./words.js";

/** The lists, in their order: name in the answer, heading. */
export const WHY_GROUPS = [
  ["preempted", "Preempted in this step"],
  ["waiting", "Waiting"],
  ["running", "Running"],
];
// What a request lacks, or did, in a word.
const IN_A_WORD = {
  free_blocks: "blocks",
  max_num_seqs: "place",
  token_budget: "budget",
  behind: "behind",
  unnamed: "policy",
  gave_way: "gave way",
  failed_step: "failed step",
};

/** The rows of one list. by: of a preemption, whom it was for. */
export function whyRows(told, group) {
  return told[group].map(({ kind, subject, what, more }) => {
    const by = kind === "preempted" && group === "preempted" ? what.find((part) => part[0] === "sequence") : null;
    return { key: `${group} ${subject[1]}`, id: subject[1], subject, word: IN_A_WORD[kind] ?? kind, by, what, more };
  });
}

/** How many there are of a group, beside those that are listed. */
export function whyMore(told, group) {
  const all = { waiting: told.num_waiting, running: told.num_running }[group] ?? 0;
  return Math.max(0, all - told[group].length);
}

/** Whether a sequence is among those that are told of, or not there at all. */
export function isTold(told, id) {
  const rows = [...told.waiting, ...told.running];
  return rows.length >= told.num_waiting + told.num_running || rows.some(({ subject }) => subject[1] === id);
}

/** What the status line says: all about the selected request, else how many there are. */
export function whyLine(told, id) {
  const row = [...told.preempted, ...told.waiting, ...told.running].find(({ subject }) => subject[1] === id);
  if (row) return [plain(row.subject[2]), partsText(row.what), partsText(row.more)];
  const gone = told.preempted.length ? `${count(told.preempted.length, "preemption")} in this step` : "";
  return [`${count(told.num_waiting, "request")} waiting`, `${told.num_running} running`, gone];
}
