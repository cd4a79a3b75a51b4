// Answer as viewer.py does, by onnxruntime in the browser: the same JSON for each request.
import * as ort from "./onnxruntime/ort.wasm.bundle.min.mjs";

const SHOWN = 8; // active units, and next bytes
const WINDOW = 64; // bytes of a call; between two the page answers its user
const encoder = new TextEncoder();
let model; // model.json, see viewer.py
let session;
let kept = []; // of each byte of the last text: byte, h, c [layers * hidden], logits [256]

async function load() {
  ort.env.wasm.numThreads = 1; // more need headers that few static servers send
  model = await (await fetch("model.json")).json();
  session = await ort.InferenceSession.create("model.onnx");
}

const loaded = load();
let last = loaded; // one answer at a time

export function ask(path, request) {
  const answer = last.then(() => answers[path](request));
  last = answer.catch(() => loaded);
  return answer;
}

// What Python's `strip` removes, and what its `html.unescape` replaces.
const SPACE = "[\\t-\\r\\x1c- \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]";
const REFERENCE = /&(#[0-9]+;?|#[xX][0-9a-fA-F]+;?|[^\t\n\f <&#;]{1,32};?)/g;
const INVALID = /^[\x01-\x08\v\x0e-\x1f\x7f\p{Noncharacter_Code_Point}]$/u;
const strip = (text) => text.replace(new RegExp(`^${SPACE}+|${SPACE}+$`, "g"), "");

function unescaped(reference) {
  const box = document.createElement("textarea");
  box.innerHTML = reference;
  return reference[1] === "#" && INVALID.test(box.textContent) ? "" : box.textContent;
}

// As `clean` in documents.py: what it puts in front, what it keeps, and what it puts behind.
function pieces(text) {
  text = text.replace(/\p{Surrogate}/gu, "?"); // a lone one
  if (model.cleaning === "radford") {
    return ["\n ", strip(text.replace(REFERENCE, unescaped).replace(/\r\n|\n|\r/g, " ")), " "];
  }
  if (model.cleaning === "none") return ["", text, "\n"];
  text = text.replace(new RegExp(SPACE, "g"), "").toUpperCase().replace(/[BZJ]/g, "X");
  return ["\x02", text.replace(/\*$/, ""), ""];
}

// As `prompt_bytes` in documents.py.
function prompt(text) {
  const [before, keeps] = pieces(text), isOpen = new RegExp(`${SPACE}$`).test(text);
  return before + keeps + (model.cleaning === "radford" && isOpen ? " " : "") || "\n";
}

// Read bytes after a state; return what is known after each.
async function step(bytes, before) {
  const width = model.layers * model.hidden, shape = [1, model.layers, model.hidden];
  const state = (array) => new ort.Tensor("float32", array ?? new Float32Array(width), shape);
  const found = await session.run({
    bytes: new ort.Tensor("uint8", bytes, [1, bytes.length]),
    lengths: new ort.Tensor("int64", [BigInt(bytes.length)], [1]),
    h: state(before?.h), c: state(before?.c),
  }, ["h_each", "c_each", "logits"]);
  const of = (name, t, size) => found[name].data.subarray(t * size, (t + 1) * size);
  return Array.from(bytes, (byte, t) =>
    ({ byte, h: of("h_each", t, width), c: of("c_each", t, width), logits: of("logits", t, 256) }));
}

const pause = () => new Promise((done) => setTimeout(done));

// Read a text; the beginning that it shares with the last one is not read again.
async function trace(text) {
  const bytes = encoder.encode(text), unknown = bytes.find((byte) => model.unknown.includes(byte));
  if (unknown !== undefined) throw new Error(`the model cannot read ${model.shown[unknown]}.`);
  let same = 0;
  while (same < kept.length && kept[same].byte === bytes[same]) same += 1;
  kept.length = same;
  for (let at = same; at < bytes.length; at += WINDOW) {
    if (at > same) await pause();
    kept.push(...(await step(bytes.slice(at, at + WINDOW), kept[at - 1])));
  }
  return [...kept];
}

// A state of a layer after each byte.
function values(read, state, layer) {
  const of = (array) => array.subarray(layer * model.hidden, (layer + 1) * model.hidden);
  if (state !== "mean_h") return read.map((one) => of(one[state]));
  const sum = new Float64Array(model.hidden);
  return read.map((one, t) => {
    const h = of(one.h), mean = new Float32Array(model.hidden);
    for (let unit = 0; unit < model.hidden; unit += 1) mean[unit] = (sum[unit] += h[unit]) / (t + 1);
    return mean;
  });
}

function logSumExp(logits) {
  const most = Math.max(...logits);
  return most + Math.log(logits.reduce((sum, one) => sum + Math.exp(one - most), 0));
}

function softmax(logits) {
  const total = logSumExp(logits);
  return Array.from(logits, (one) => Math.exp(one - total));
}

// As `Classifier` in classify.py: features · weights + intercepts of each class, after each byte.
function linear(read) {
  const { parts, weights, intercepts } = model.classifier;
  const features = parts.map(([state, layer]) => values(read, state, layer));
  return read.map((_, t) => weights.map((row, k) => {
    let sum = intercepts[k], at = 0;
    for (const { [t]: part } of features) {
      for (let unit = 0; unit < part.length; unit += 1) sum += row[at++] * part[unit];
    }
    return sum;
  }));
}

function probabilities(scores) {
  if (model.classifier.softmax) return softmax(scores);
  const yes = scores.map((one) => 1 / (1 + Math.exp(-one)));
  if (model.classifier.thresholds) return yes;
  const all = yes.length === 1 ? [1 - yes[0], yes[0]] : yes, total = all.reduce((a, b) => a + b);
  return all.map((one) => one / total);
}

function score(scores, k) {
  if (model.classifier.thresholds) {
    const limit = Math.min(Math.max(model.classifier.thresholds[k], 1e-12), 1 - 1e-12);
    return scores[k] - Math.log(limit / (1 - limit));
  }
  if (scores.length === 1) return k ? scores[0] : -scores[0];
  if (!model.classifier.softmax) return scores[k];
  return scores[k] - logSumExp(scores.filter((_, other) => other !== k));
}

// As `Familiar` in classifier_file.py.
function isUnlike(read) {
  const { familiar } = model.classifier, count = read.length - 1;
  const nats = read.slice(1).map(({ byte }, t) => logSumExp(read[t].logits) - read[t].logits[byte]);
  const most = familiar && (familiar.bits * count + familiar.short * Math.sqrt(count)) * Math.LN2;
  return familiar !== null && nats.reduce((a, b) => a + b, 0) > most;
}

const rounded = (value) => Number(value.toFixed(4));

// The places of the largest.
function largest(array, size = Number) {
  return [...array.keys()].sort((a, b) => size(array[b]) - size(array[a])).slice(0, SHOWN);
}

function check(name, value, lowest, highest) {
  if (Number.isInteger(value) && lowest <= value && value <= highest) return;
  throw new Error(`${name} is ${value}, but it must be ${lowest} to ${highest}.`);
}

const answers = {
  model: () => model,

  async read({ text, state, layer, unit, label }) {
    check("the length of the text in bytes", encoder.encode(text).length, 0, model.most_bytes);
    check("layer", layer, 0, model.layers - 1);
    const [before, keeps, after] = pieces(text), whole = strip(keeps) && before + keeps + after;
    const all = model.classifier && whole ? await trace(whole) : [];
    let coloured = prompt(text), classes = [], unlike = false;
    const read = await trace(coloured), states = values(read, state, layer), end = states.at(-1);
    const active = largest(end, Math.abs), next = softmax(read.at(-1).logits);
    unit ??= active[0];
    check("unit", unit, 0, model.hidden - 1);
    let heat = states.map((one) => one[unit]);
    if (all.length) {
      const scores = linear(all), { thresholds } = model.classifier;
      unlike = isUnlike(all);
      classes = probabilities(scores.at(-1)).map((probability, k) => ({
        name: model.scores[k], probability, yes: thresholds !== null && probability >= thresholds[k],
      }));
      heat = label === null ? heat : scores.map((one) => score(one, model.scores.indexOf(label)));
    }
    if (label !== null) coloured = whole;
    let at = -1;
    return {
      state, layer, unit, label, classes, unlike,
      characters: Array.from(coloured, (one) =>
        ({ text: one, value: rounded(heat[(at += encoder.encode(one).length)]) })),
      active: active.map((one) => ({ unit: one, value: rounded(end[one]) })),
      next: largest(next).map((byte) => ({ byte, text: model.shown[byte], probability: next[byte] })),
    };
  },

  // As generate.py, but with other random numbers (mulberry32).
  async generate({ text, bytes, temperature, seed, unit, value }) {
    check("the length of the text in bytes", encoder.encode(text).length, 0, model.most_bytes);
    check("bytes", bytes, 1, model.most_generated);
    check("unit", unit, 0, model.hidden - 1);
    if (!(temperature >= 0)) throw new Error(`temperature is ${temperature}, but must be 0 or more.`);
    let at = (await trace(prompt(text))).at(-1);
    const drawn = new Uint8Array(bytes);
    for (let place = 0; place < bytes; place += 1) {
      let mixed = Math.imul((seed = (seed + 0x6d2b79f5) | 0) ^ (seed >>> 15), seed | 1);
      mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
      let left = ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
      const shares = softmax(Array.from(at.logits, (one, byte) =>
        model.unknown.includes(byte) ? -Infinity : one / Math.max(temperature, 1e-6)));
      const found = temperature ? shares.findIndex((share) => (left -= share) < 0) : -1;
      drawn[place] = found < 0 ? shares.indexOf(Math.max(...shares)) : found;
      const c = at.c.slice();
      if (value !== null) c[(model.layers - 1) * model.hidden + unit] = value;
      [at] = await step(drawn.slice(place, place + 1), { h: at.h, c });
      if (place % WINDOW === 0) await pause();
    }
    return { text: new TextDecoder("utf-8", { ignoreBOM: true }).decode(drawn) };
  },
};
