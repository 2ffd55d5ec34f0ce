// Columns of numbers: decoded once, reduced to what a plot can show without losing its extremes.
"use strict";

const KINDS = { float32: Float32Array, uint8: Uint8Array };

function decoded(column) {
  const text = atob(column.base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new KINDS[column.kind](bytes.buffer);
}

/** First index whose x is at least `value`; x ascends. */
function lowerBound(x, value) {
  let low = 0, high = x.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (x[middle] < value) low = middle + 1; else high = middle;
  }
  return low;
}

/** Where [from, to) of n points is cut into at most `parts` parts of equal length. */
function cuts(from, to, parts) {
  const count = Math.max(1, Math.min(parts, to - from));
  return Array.from({ length: count + 1 }, (_, i) => from + Math.round((i * (to - from)) / count));
}

/** Mean, lowest and highest finite value of every part; `only(i)` chooses points. Null where a part has none. */
function envelope(values, edges, only) {
  const mean = [], low = [], high = [];
  for (let part = 0; part + 1 < edges.length; part++) {
    let sum = 0, count = 0, least = Infinity, most = -Infinity;
    for (let i = edges[part]; i < edges[part + 1]; i++) {
      const value = values[i];
      if (!Number.isFinite(value) || (only && !only(i))) continue;
      sum += value; count++;
      if (value < least) least = value;
      if (value > most) most = value;
    }
    mean.push(count ? sum / count : null);
    low.push(count ? least : null);
    high.push(count ? most : null);
  }
  return { mean, low, high };
}

/** x of every part: its middle point. */
function middles(x, edges) {
  const places = [];
  for (let part = 0; part + 1 < edges.length; part++) places.push(x[(edges[part] + edges[part + 1] - 1) >> 1]);
  return places;
}
