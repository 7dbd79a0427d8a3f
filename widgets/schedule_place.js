// Where things are in the schedule. `at` is what schedule_view.js has laid out. Knows no engine and no colour.

/** Pixels: the budget's bars, the lane of waiting requests, the marks of how a step ran, the numbers of the steps. */
export const BAR = 46,
  LANE = 11,
  MARKS = 9,
  AXIS = 18;
/** All of these, a row, and the names left of the columns. */
export const HEADER = BAR + LANE + MARKS + AXIS + 8,
  ROW_HEIGHT = 22,
  LABEL = 112;

export const columnX = (at, column) => LABEL + column * at.cw - at.left;
export const rowY = (at, row) => HEADER + row * ROW_HEIGHT - at.top;
export const gapOf = (at) => (at.cw >= 11 ? 2 : 1);

/** First and last + 1 of the columns in sight, then of the rows. */
export function inSight(at) {
  const from = Math.max(0, Math.floor(at.left / at.cw)),
    upper = Math.floor(at.top / ROW_HEIGHT);
  return [
    from,
    Math.min(at.steps, from + Math.ceil(at.width / at.cw) + 1),
    upper,
    Math.min(at.rows.length, upper + Math.ceil(at.height / ROW_HEIGHT) + 1),
  ];
}

/** Draw within a rectangle. */
export function clipped(g, x, y, width, height, draw) {
  g.save();
  g.beginPath();
  g.rect(x, y, width, height);
  g.clip();
  draw();
  g.restore();
}
