// When a sequence waited and when it was resident. Knows no DOM.

/** Whether a sequence left before the step it ended at: aborted, or ended while nobody looked. */
export const leftBefore = (seq) => seq.status === "abort" || seq.status === "finished";

/** [first step, last step, is waiting] of each span up to step `newest`, oldest first. */
export function spansOf(seq, newest) {
  const spans = [],
    last = seq.ended < 0 ? newest : seq.ended - (leftBefore(seq) ? 1 : 0);
  // Before its first move it was in the other queue; with none it is still there, where a waiting one has no KV.
  let waits = seq.moves.length ? !seq.moves[0][1] : !seq.numComputed,
    from = seq.born;
  for (const [step, then] of seq.moves) {
    if (step > from) spans.push([from, step - 1, waits]);
    [from, waits] = [Math.max(from, step), then];
  }
  if (last >= from) spans.push([from, last, waits]);
  return spans;
}
