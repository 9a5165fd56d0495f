// Numbers as people read them, each with its unit. Unknown is "-". In proto3 JSON an int64 is a string and NaN
// is a word, so that everything passes through number().
// SPDX-License-Identifier: Apache-2.0

export const UNKNOWN = "-";
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

// A finite number, or null.
export function number(value) {
  if (value === null || value === undefined || value === "") return null;
  const result = Number(value);
  return Number.isFinite(result) ? result : null;
}

export function count(value) {
  const n = number(value);
  return n === null ? UNKNOWN : Math.round(n).toLocaleString("en-US");
}

// Four significant digits: 2.314, 0.0003, 1.2e-7.
export function real(value, digits = 4) {
  const n = number(value);
  if (n === null) return UNKNOWN;
  const size = Math.abs(n);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) {
    return n.toExponential(Math.max(0, digits - 2)).replace(/\.?0+e/, "e").replace("e+", "e");
  }
  if (size >= 10 ** (digits - 1)) return Math.round(n).toLocaleString("en-US");
  return String(Number(n.toPrecision(digits)));
}

// Points of an axis, with the digits that tell them apart.
export function ticks(points) {
  const most = Math.max(...points.map(Math.abs));
  const step = points.length > 1 ? Math.abs(points[1] - points[0]) : most;
  const digits = step > 0 && most > 0 ? Math.min(12, Math.ceil(Math.log10(most / step)) + 3) : 4;
  return points.map((point) => real(Math.abs(point) < step / 1e6 ? 0 : point, Math.max(4, digits)));
}

// The unit in which bytes up to `most` are told: {divisor, unit}.
export function byteUnit(most) {
  let power = 0;
  while (power < UNITS.length - 1 && most >= 1024 ** (power + 1)) power += 1;
  return { divisor: 1024 ** power, unit: UNITS[power] };
}

export function bytes(value) {
  const n = number(value);
  if (n === null) return UNKNOWN;
  const { divisor, unit } = byteUnit(Math.abs(n));
  const scaled = n / divisor;
  return `${unit === "B" ? scaled : scaled.toFixed(Math.abs(scaled) < 100 ? 2 : 1)} ${unit}`;
}

export function percent(part, whole) {
  const [a, b] = [number(part), number(whole)];
  return a === null || !b ? UNKNOWN : `${((100 * a) / b).toFixed(1)} %`;
}

export function rate(value) {
  return number(value) === null ? UNKNOWN : `${real(value)} tokens/s`;
}

export function seconds(value) {
  const n = number(value);
  if (n === null) return UNKNOWN;
  if (n < 0) return `-${seconds(-n)}`;
  if (n === 0) return "0 s";
  if (n < 1e-3) return `${real(n * 1e6, 3)} µs`;
  if (n < 1) return `${real(n * 1e3, 3)} ms`;
  if (n < 60) return `${real(n, 3)} s`;
  const whole = Math.round(n);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

// 124 M of 124,439,808.
export function short(value) {
  const n = number(value);
  if (n === null) return UNKNOWN;
  for (const [size, letter] of [[1e12, " T"], [1e9, " B"], [1e6, " M"], [1e3, " k"]]) {
    if (n >= size) return `${Number((n / size).toPrecision(3))}${letter}`;
  }
  return String(n);
}

const two = (value) => String(value).padStart(2, "0");

// Local time: 14:03:07 of today, else 2026-11-25 14:03.
export function moment(unixMs, now = Date.now()) {
  const n = number(unixMs);
  if (!n) return UNKNOWN;
  const date = new Date(n);
  const clock = `${two(date.getHours())}:${two(date.getMinutes())}`;
  if (date.toDateString() === new Date(now).toDateString()) return `${clock}:${two(date.getSeconds())}`;
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock}`;
}

// Of points in seconds since 1970 on an axis: dates where they are days apart, seconds where they are less than
// a minute apart.
export function clocks(points) {
  const step = points.length > 1 ? points[1] - points[0] : 60;
  return points.map((point) => {
    const date = new Date(point * 1000);
    const day = `${two(date.getMonth() + 1)}-${two(date.getDate())}`;
    if (step >= 86400) return day;
    const clock = `${two(date.getHours())}:${two(date.getMinutes())}`;
    if (step < 60) return `${clock}:${two(date.getSeconds())}`;
    return points[points.length - 1] - points[0] > 86400 ? `${day}\n${clock}` : clock;
  });
}

export function since(fromMs, untilMs) {
  const [from, until] = [number(fromMs), number(untilMs)];
  return !from || !until ? UNKNOWN : seconds(Math.max(0, Math.round((until - from) / 1000)));
}
