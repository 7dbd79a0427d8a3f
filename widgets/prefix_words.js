// What the prefix view lists and says, from Python's answer. Knows no DOM and no colour.

import { copyAs } from "./wire.js";
import { count, digits, plain } from "./words.js";

/** The answer's runs with their blocks as lists, and who follows whom. */
export function readRuns(told) {
  const runs = told.runs.map((run, place) => ({
    ...run,
    place,
    blocks: Array.from(copyAs(Uint32Array, run.blocks)),
    refs: Array.from(copyAs(Uint8Array, run.refs)),
    level: 0,
    behind: 0,
  }));
  for (const run of runs) {
    if (run.parent < 0) continue;
    run.level = runs[run.parent].level + 1;
    runs[run.parent].behind += 1;
  }
  return runs;
}

/** The runs in sight, where those behind a closed one (by its first block) are not; each after the one it follows. */
export function openRuns(runs, closed) {
  const inSight = new Set([-1]);
  return runs.filter((run) => {
    if (!inSight.has(run.parent)) return false;
    if (!closed.has(run.blocks[0])) inSight.add(run.place);
    return true;
  });
}

/** The beginning and the end of a run's text. */
export function runText({ text: [begin, end] }) {
  if (end === undefined) return plain(begin);
  const first = [...plain(begin)].slice(0, 60),
    last = [...plain(end)].slice(-30);
  return `${first.join("")} … ${last.join("")}`;
}

/** Who holds a run, in words. */
export function holdWords({ length, held, most_refs: most }) {
  if (!held) return "only cached";
  const who = `held by ${count(most, "request")}`;
  return held === length ? who : `${digits(held)} ${who}`;
}

/** The facts beside a run's text. */
export function runFacts(run) {
  return [
    count(run.length, "block"),
    holdWords(run),
    run.hits ? count(run.hits, "hit") : "",
    run.is_salted ? "salted" : "",
    run.is_cut ? "cut off" : "",
  ].filter(Boolean);
}

/** All about a run, for the status line. */
export function runLine(run, blockSize) {
  const from = run.depth * blockSize,
    first = run.blocks[0];
  const more = run.length > 1 ? ` and the ${digits(run.length - 1)} that follow` : "";
  return [
    `block ${first}${more}`,
    `positions ${digits(from)} to ${digits(from + run.length * blockSize - 1)}`,
    holdWords(run),
    run.hits ? `shared by ${count(run.hits, "later request")}` : "not hit yet",
    run.by ? `filled by request ${plain(run.by[1])} in step ${run.step}` : `filled in step ${run.step}`,
    run.is_salted ? "only requests with its salt can hit it" : "",
    run.is_cut ? "what stood before it was evicted: nothing can hit it" : "",
  ];
}

/** The blocks of the prefix cache, and those of them that somebody holds: [all, held]. words: of all blocks. */
export function cacheCounts(words) {
  let [all, held] = [0, 0];
  for (const word of words) {
    all += word & 1;
    if (word > 1) held += word & 1;
  }
  return [all, held];
}

/** How much is in the prefix cache, and what is not shown of it. "cached" alone is what nobody holds. */
export function treeWords(told, [all, held]) {
  if (!all) return ["The prefix cache is empty."];
  const { hidden_runs: runs, hidden_blocks: blocks } = told,
    some = held === all ? "all" : held ? digits(held) : "none",
    share = all > 1 ? `${some} of them held` : held ? "held" : "not held";
  return [
    `${count(all, "block")} in the prefix cache, ${share}`,
    runs ? `${count(runs, "smaller run")} of ${count(blocks, "block")} not shown` : "",
    told.unknown ? `${count(told.unknown, "block")} filled before it was recorded` : "",
  ];
}

/** What follows a run and is not shown; "" if nothing. */
export function hiddenWords({ hidden_runs: runs, hidden_blocks: blocks }) {
  return runs ? `${count(runs, "smaller run")} of ${count(blocks, "block")} behind it not shown` : "";
}

/** Which places of a run's list of blocks are lit; of one that is longer than its list, as far as that goes. */
export function litPlaces(run, lit) {
  return run.blocks.flatMap((block, place) => (lit.has(block) ? [place] : []));
}
