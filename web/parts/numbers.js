/** Numbers as they are read: four digits, a true minus, infinity by its sign. */

/** JSON has no infinities: they come as strings. */
export const number = (told) =>
  typeof told === "string" ? { "-inf": -Infinity, inf: Infinity, nan: NaN }[told] : (told ?? NaN);

const minus = (text) => text.replace(/-/g, "−");

/** Four significant digits: 0.3127, −1.204, 1.902e−7. */
export function short(told, digits = 4) {
  const x = number(told);
  if (Number.isNaN(x)) return "—";
  if (!Number.isFinite(x)) return x < 0 ? "−∞" : "∞";
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size < 1e-4 || size >= 1e6) return minus(x.toExponential(digits - 1));
  return minus(x.toPrecision(digits));
}

/** All digits there are. */
export function full(told) {
  const x = number(told);
  return Number.isFinite(x) ? minus(String(x)) : short(x);
}

/** A share of one: 31.3 %, 0.04 %. */
export function percent(told) {
  const x = number(told) * 100;
  if (Number.isNaN(x)) return "—";
  if (x === 0) return "0 %";
  if (x < 0.01) return "< 0.01 %";
  return `${x >= 99.95 ? "100" : x >= 10 ? String(Number(x.toFixed(1))) : String(Number(x.toPrecision(2)))} %`;
}

export const count = (n) => n.toLocaleString("en");

export const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

export const dot = (a, b) => a.reduce((total, x, m) => total + x * b[m], 0);

export const norm = (a) => Math.sqrt(dot(a, a));

export const cosine = (a, b) => dot(a, b) / (norm(a) * norm(b) || 1);

export const largest = (numbers) => numbers.reduce((best, x) => (Number.isFinite(x) ? Math.max(best, Math.abs(x)) : best), 0);

export const argmax = (numbers) => numbers.reduce((best, x, at) => (x > numbers[best] ? at : best), 0);
