// Data, the state in the address, and how elements are made. Text from models only ever becomes text nodes.

const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const rules = new Map(data.rules.map((rule) => [rule.id, rule]));
const VERDICTS = { correct: ["✓", "correct"], incorrect: ["✗", "wrong"], unknown: ["?", "unknown"] };
const VIEWS = ["curves", "episodes", "compare"];
const OUTCOMES = ["correct", "wrong", "unknown"];
let episodes = [];
let byKey = new Map();

// el("a#id.class", {href, onclick}, "text", child, ...)
function el(spec, attributes = {}, ...children) {
  const [, tag, id, classes] = spec.match(/^(\w+)(#[\w-]+)?((?:\.[\w-]+)*)$/);
  const element = document.createElement(tag);
  if (id) element.id = id.slice(1);
  if (classes) element.className = classes.slice(1).replaceAll(".", " ");
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}

async function unpack(block) {
  const packed = Uint8Array.from(atob(block.textContent), (char) => char.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

async function loadEpisodes() {
  const texts = await Promise.all([...document.querySelectorAll("script.episodes")].map(unpack));
  texts.forEach((chunk, block) => chunk.forEach((episode, place) => {
    episode.block = block;
    episode.place = place;
    episode.key = [episode.run, episode.split, episode.iteration, episode.group_id, episode.sample_index].join(".");
    episode.found = [episode.problem_id, episode.answer, ...episode.turns.map((turn) => turn.text)].join("\n").toLowerCase();
    episodes.push(episode);
  }));
  nameQuestions();
  episodes.sort((a, b) => a.run - b.run || a.iteration - b.iteration || a.split.localeCompare(b.split)
    || a.group_id - b.group_id || a.sample_index - b.sample_index);
  byKey = new Map(episodes.map((episode) => [episode.key, episode]));
}

const tokenBlocks = new Map();
async function tokensOf(episode) {
  if (!tokenBlocks.has(episode.block)) {
    tokenBlocks.set(episode.block, unpack(document.querySelectorAll("script.tokens")[episode.block]));
  }
  return (await tokenBlocks.get(episode.block))[episode.place];
}

// The question is what is left of a prompt without the lines that all prompts of its run share.
function nameQuestions() {
  for (const run of data.runs.keys()) {
    const own = episodes.filter((episode) => episode.run === run && episode.turns.length);
    const prompts = [...new Set(own.map((episode) => episode.turns[0].text))].map((text) => text.split("\n"));
    if (prompts.length < 2) prompts.length = 0;
    let head = 0;
    let tail = 0;
    const shortest = Math.min(...prompts.map((lines) => lines.length));
    while (prompts.length && head < shortest - 1 && prompts.every((lines) => lines[head] === prompts[0][head])) head += 1;
    while (prompts.length && tail < shortest - 1 - head && prompts.every((lines) => lines.at(-1 - tail) === prompts[0].at(-1 - tail))) tail += 1;
    for (const episode of own) {
      const lines = episode.turns[0].text.split("\n");
      episode.question = lines.slice(head, lines.length - tail).join("\n");
    }
  }
}

// The state is the fragment, so that a link opens the same view again.
function readState() {
  const given = new URLSearchParams(location.hash.slice(1));
  const state = Object.fromEntries(given);
  if (!VIEWS.includes(state.view)) state.view = "curves";
  state.rules = (state.rules || "").split("+").filter((id) => rules.has(id));
  state.cmp = (state.cmp || "").split("+").filter(Boolean);
  return state;
}

function address(state) {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    const text = Array.isArray(value) ? value.join("+") : value;
    if (text != null && text !== "") given.set(name, text);
  }
  return "#" + given;
}

const linkTo = (changes) => address({ ...readState(), ...changes });

// At once, without waiting for the browser's event, which comes for links and for its back button.
function go(changes, quietly = false) {
  const target = linkTo(changes);
  if (target === location.hash) return;
  if (quietly) history.replaceState(null, "", target);
  else history.pushState(null, "", target);
  render();
}

const splitName = (split) => ({ train: "training", evaluation: "held out" })[split] || split;
const digits = (value, number = 2) => (value == null ? "–" : Number(value).toFixed(number));
const plural = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
