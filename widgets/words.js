// Numbers and foreign text, ready to be shown. Knows no DOM.

/** Text whose invisible characters are shown: line ends, tabs, control characters and those that turn the direction. */
export function plain(text) {
  return String(text)
    .replace(/\r?\n/g, "↵")
    .replace(/\t/g, "⇥")
    .replace(
      /[\u0000-\u001f\u007f-\u009f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g,
      (c) => `‹${c.codePointAt(0).toString(16).padStart(4, "0")}›`,
    );
}

/** The end of a text. */
export function tail(text, length) {
  const letters = [...text];
  return letters.length > length ? `…${letters.slice(-length).join("")}` : text;
}

/** `value` kept between two others. */
export function clamp(value, low, high) {
  return Math.max(low, Math.min(high, value));
}

const NUMBERS = new Intl.NumberFormat("en-US"); // to make one takes longer than to use it

/** A number with its thousands set apart. */
export function digits(n) {
  return NUMBERS.format(n);
}

/** A count with its noun: "1 token", "12,345 tokens". */
export function count(n, noun) {
  return `${digits(n)} ${noun}${n === 1 ? "" : "s"}`;
}
