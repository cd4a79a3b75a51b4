const NEGATIVE = [33, 102, 172];
const POSITIVE = [230, 97, 1];
const WAIT = 120; // milliseconds from the first key to reading the text; more keys do not extend it
const PATIENCE = 1000; // milliseconds that the reading of an older text may take

const MEANINGS = {
  score: "Score after each character, as log-odds: 0 is even, 2.2 is 90%, 4.6 is 99% for this class.",
  c: "c: the cell state, the memory of the unit, after each character.",
  h: "h: the output of the unit, from which the next byte is predicted, after each character.",
  mean_h: "Mean of h so far: the mean of the unit's output from the first byte to each character.",
};

const element = (id) => document.getElementById(id);
let unit = null;
let waiting = null;
let reading = null; // how to abort the one request at a time: the next sends the text as it is then
let again = false;
let writing = null;
let scale = 1e-6; // only grows until another unit is shown
let drawn = "";

function show(error) {
  element("error").hidden = !error;
  element("error").textContent = error ? error.message : "";
}

function colour(value, scale) {
  const share = Math.min(Math.abs(value) / scale, 1);
  const full = value > 0 ? POSITIVE : NEGATIVE;
  return full.map((part) => Math.round(255 + (part - 255) * share));
}

async function ask(path, body, signal) {
  const response = await fetch(path, {
    method: "POST",
    signal,
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

function shown(text) {
  if (text === "\n") return "↵";
  const code = text.charCodeAt(0); // a control character has a symbol, such as ␂ for STX
  return code < 32 ? String.fromCharCode(0x2400 + code) : text;
}

function drawHeat({ characters, ...found }) {
  const scored = found.label !== null;
  const what = scored ? `score ${found.label}` : `${found.state} ${found.layer} ${found.unit}`;
  if (what !== drawn) scale = 1e-6;
  drawn = what;
  // The mean of a few bytes has a larger score than any whole text.
  const counted = scored ? characters.filter((_, number) => endsWord(characters, number)) : characters;
  scale = Math.max(scale, ...counted.map((one) => Math.abs(one.value)));
  element("low").textContent = "−" + scale.toPrecision(3);
  element("high").textContent = scale.toPrecision(3) + (scored ? " log-odds" : "");
  element("meaning").textContent = MEANINGS[scored ? "score" : found.state];
  const spans = characters.map((one) => {
    const span = document.createElement("span");
    const [red, green, blue] = colour(one.value, scale);
    span.textContent = shown(one.text);
    span.title = digits(one.value);
    span.style.background = `rgb(${red},${green},${blue})`;
    span.style.color = 0.299 * red + 0.587 * green + 0.114 * blue < 110 ? "#fff" : "#111";
    return span;
  });
  element("heat").replaceChildren(...(scored ? inWords(spans, characters) : spans));
}

const isSpace = (one) => one === undefined || /\s/.test(one.text);

function endsWord(characters, number) {
  return !isSpace(characters[number]) && isSpace(characters[number + 1]);
}

// A score is also shown in digits, above each word: its value after the last character.
function inWords(spans, characters) {
  const found = [];
  let word = null;
  spans.forEach((span, number) => {
    if (isSpace(characters[number])) {
      found.push(span);
      word = null;
      return;
    }
    if (word === null) {
      word = document.createElement("ruby");
      word.append(document.createElement("rt"));
      found.push(word);
    }
    const value = characters[number].value;
    word.lastChild.textContent = (value < 0 ? "−" : "+") + Math.abs(value).toFixed(1);
    word.lastChild.before(span);
  });
  return found;
}

function bars(id, rows) {
  const largest = Math.max(...rows.map((row) => Math.abs(row.value)), 1e-9);
  element(id).replaceChildren(
    ...rows.map((row) => {
      const item = document.createElement("li");
      const bar = document.createElement("span");
      const value = document.createElement("span");
      bar.className = (row.positive ?? row.value > 0) ? "bar positive" : "bar";
      bar.style.width = (100 * Math.abs(row.value)) / largest + "%";
      value.className = "value";
      value.textContent = row.shown;
      item.append(row.name, bar, value);
      return item;
    }),
  );
}

function unitButton(number) {
  const button = document.createElement("button");
  button.textContent = number;
  button.title = "show this unit";
  button.addEventListener("click", () => choose(number));
  return button;
}

function label(text) {
  const span = document.createElement("span");
  span.textContent = text;
  return span;
}

function choose(number) {
  unit = number;
  element("unit").value = number;
  element("shown").value = ""; // a unit, not a score
  read();
}

// The number in the box of the unit; an Error if the model has no such unit.
function typedUnit() {
  const typed = element("unit").value;
  const number = Number(typed);
  const last = Number(element("unit").max);
  if (typed === "" || !Number.isInteger(number) || number < 0 || number > last) {
    throw new Error(`unit is ${typed || "empty"}, but it must be a whole number from 0 to ${last}.`);
  }
  return number;
}

const digits = (value) => value.toFixed(3).replace("-", "−");
const percent = (share) => (share < 0.001 ? "< 0.1%" : (100 * share).toFixed(1) + "%");

// What is shown is of the text in the box; or of an older one, and the newer is being read.
function showState(state) {
  document.body.dataset.state = state;
  element("found").ariaBusy = state === "reading";
}

async function read() {
  for (const id of ["state", "layer", "unit"]) element(id).disabled = element("shown").value !== "";
  again = reading !== null;
  if (reading) {
    if (performance.now() - reading.since > PATIENCE) reading.abort();
    return;
  }
  reading = new AbortController();
  reading.since = performance.now();
  setTimeout((one) => again && one === reading && one.abort(), PATIENCE, reading);
  showState("reading");
  try {
    const found = await ask("read", {
      text: element("text").value,
      state: element("state").value,
      layer: Number(element("layer").value),
      unit,
      label: element("shown").value ? element("shown").selectedOptions[0].dataset.label : null,
    }, reading.signal);
    show(null);
    if (unit === null) element("unit").value = found.unit;
    element("held").textContent = element("unit").value;
    drawHeat(found);
    element("classes-section").hidden = found.classes.length === 0;
    element("unlike").hidden = !found.unlike;
    element("broken").hidden = !found.broken;
    // Of two classes the first has the colour of negative scores.
    const isFirst = (number) => found.classes.length === 2 && number === 0;
    bars("classes", found.classes.map((one, number) =>
      ({ name: label(one.name), value: one.probability, positive: !isFirst(number),
         shown: percent(one.probability) })));
    bars("active", found.active.map((one) =>
      ({ name: unitButton(one.unit), value: one.value, shown: digits(one.value) })));
    bars("next", found.next.map((one) =>
      ({ name: label(one.text), value: one.probability, shown: percent(one.probability) })));
    showState(again ? "reading" : "");
  } catch (error) {
    if (error.name !== "AbortError") {
      show(error);
      showState("old");
    }
  } finally {
    reading = null;
    if (again) read();
  }
}

async function write() {
  element("generate").disabled = true;
  element("written").ariaBusy = true;
  writing = new AbortController();
  try {
    const text = element("text").value;
    const held = element("hold").checked;
    const found = await ask("generate", {
      text,
      bytes: Number(element("bytes").value),
      temperature: Number(element("temperature").value),
      seed: Number(element("seed").value),
      unit: held ? typedUnit() : null,
      value: held ? Number(element("value").value) : null,
    }, writing.signal);
    show(null);
    if (element("text").value === text) element("written").textContent = text + found.text;
  } catch (error) {
    if (error.name !== "AbortError") show(error);
  } finally {
    element("generate").disabled = false;
    element("written").ariaBusy = false;
  }
}

element("text").addEventListener("input", () => {
  element("written").textContent = ""; // it continued another text
  writing?.abort();
  showState("reading");
  if (waiting !== null) return;
  waiting = setTimeout(() => {
    waiting = null;
    read();
  }, WAIT);
});
for (const id of ["shown", "state", "layer"]) {
  element(id).addEventListener("change", read);
}
element("unit").addEventListener("change", () => {
  try {
    choose(typedUnit());
  } catch (error) {
    show(error);
  }
});
element("generate").addEventListener("click", write);

ask("model", {}).then((model) => {
  element("model").textContent = `${model.name}: ${model.layers} × ${model.hidden} units`;
  element("unit").max = model.hidden - 1;
  element("layer").max = model.layers - 1;
  element("layer").value = model.layer;
  for (const option of element("state").options) option.hidden = !model.states.includes(option.value);
  element("state").value = model.state;
  element("shown-row").hidden = model.scores.length === 0;
  model.scores.forEach((name, number) => {
    const option = new Option(`score of ${name}`, number + 1, false, name === model.label);
    option.dataset.label = name;
    element("shown").add(option);
  });
  element("shown").selectedIndex = model.scores.indexOf(model.label) + 1;
  element("text").placeholder = model.example;
  if (model.unit !== null) {
    unit = model.unit;
    element("unit").value = unit;
  }
  element("text").value = model.text;
  return read().then(() => model.text && write());
}).catch(show);
