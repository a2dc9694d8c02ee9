// The list of episodes: filters, search, sorting; rows are made as the list is scrolled.

const BATCH = 60;
const SORTS = {
  "": ["iteration, first to last", () => 0],
  latest: ["iteration, last to first", (a, b) => b.iteration - a.iteration],
  reward: ["reward, highest first", (a, b) => b.reward - a.reward],
  advantage: ["advantage, highest first", (a, b) => (b.advantage ?? -Infinity) - (a.advantage ?? -Infinity)],
  length: ["response, longest first", (a, b) => b.num_response_tokens - a.num_response_tokens],
  programs: ["programs, most first", (a, b) => b.tool_calls.length - a.tool_calls.length],
};
let found = [];
let numShown = 0;
let bottom = null;

function buildFilters() {
  const select = (id, name, options) => el("label", {}, el("span", {}, name),
    el(`select#f-${id}`, { onchange: (event) => go({ [id]: event.target.value, ep: "" }) }, options.map(([value, text]) => el("option", { value }, visible(text)))));
  const values = (name) => [...new Set(episodes.map((episode) => episode[name]))].filter((value) => value !== "");
  const runs = data.groups.flatMap((group, g) => [[`g${g}`, group.label],
    ...(group.runs.length > 1 ? group.runs.map((r) => [`r${r}`, `  ${data.runs[r].label}`]) : [])]);
  const kinds = values("kind").sort();
  const problems = el("datalist#problem-ids", {}, values("problem_id").sort().map((id) => el("option", { value: id })));
  const typed = (id) => (event) => go({ [id]: event.target.value, ep: "" }, true);
  const chip = (rule) => el("label.chip", { title: rule.sentence, "data-rule": rule.id },
    el("input", { type: "checkbox", value: rule.id, onchange: toggleRule }), el("span", {}, rule.name), el("span.count", {}));
  $("filters").replaceChildren(
    el("div.row", {},
      el("label.search", {}, el("span", {}, "Search"), el("input#f-q", { type: "search", placeholder: "text, code, output …", oninput: typed("q"), autocomplete: "off" })),
      data.groups.length > 1 && select("run", "Run", [["", "all runs"], ...runs]),
      select("split", "Sampled in", [["", "all"], ...values("split").map((split) => [split, splitName(split)])]),
      select("it", "Iteration", [["", "all"], ...values("iteration").sort((a, b) => a - b).map((it) => [String(it), String(it)])]),
      kinds.length > 0 && select("kind", "Kind", [["", "all kinds"], ...kinds.map((kind) => [kind, kind])]),
      el("label", {}, el("span", {}, "Problem"), el("input#f-problem", { list: "problem-ids", placeholder: "all", oninput: typed("problem"), autocomplete: "off" }), problems),
      select("sort", "Sort by", Object.entries(SORTS).map(([id, [name]]) => [id, name]))),
    el("div.row.chips", { role: "group", "aria-label": "Outcome and behaviour" }, data.rules.map(chip),
      el("button#f-clear.quiet", { type: "button", onclick: () => go({ q: "", run: "", split: "", it: "", kind: "", problem: "", sort: "", rules: [], ep: "" }) }, "Clear all")),
    el("details.explain", {}, el("summary", {}, "What these mean, and which episodes are here"),
      el("dl", {}, data.rules.map((rule) => el("div", {}, el("dt", {}, rule.name), el("dd", {}, `${rule.sentence} ${rule.recorded.toLocaleString("en")} recorded.`)))),
      el("p", {}, "Of correct, wrong and unknown any one may hold; of the others all must."),
      el("p", {}, `${data.embedded.toLocaleString("en")} of ${plural(data.recorded, "recorded episode")} are in this file. ${data.choice}`)));
  $("filters").addEventListener("submit", (event) => event.preventDefault());
  bottom = new IntersectionObserver((seen) => seen.some((one) => one.isIntersecting) && showMore(), { rootMargin: "400px" });
}

function toggleRule(event) {
  const chosen = new Set(readState().rules);
  if (event.target.checked) chosen.add(event.target.value);
  else chosen.delete(event.target.value);
  go({ rules: [...chosen], ep: "" });
}

function matching(state) {
  const words = (state.q || "").toLowerCase().split(/\s+/).filter(Boolean);
  const runs = !state.run ? null : state.run[0] === "g" ? data.groups[Number(state.run.slice(1))]?.runs || [] : [Number(state.run.slice(1))];
  const isId = episodes.some((episode) => episode.problem_id === state.problem);
  return episodes.filter((episode) =>
    (!runs || runs.includes(episode.run)) && (!state.split || episode.split === state.split) && (!state.it || episode.iteration === Number(state.it))
    && (!state.kind || episode.kind === state.kind) && (!state.problem || (isId ? episode.problem_id === state.problem : episode.problem_id.includes(state.problem)))
    && words.every((word) => episode.found.includes(word)));
}

function obeys(episode, chosen) {
  const outcomes = chosen.filter((id) => OUTCOMES.includes(id));
  return (!outcomes.length || outcomes.some((id) => episode.tags.includes(id)))
    && chosen.every((id) => OUTCOMES.includes(id) || episode.tags.includes(id));
}

function renderFilters(state, base) {
  for (const id of ["q", "run", "split", "it", "kind", "problem", "sort"]) {
    const field = $(`f-${id}`);
    if (field && field.value !== (state[id] || "")) field.value = state[id] || "";
  }
  const counts = new Map();
  for (const episode of base) for (const id of episode.tags) counts.set(id, (counts.get(id) || 0) + 1);
  for (const chip of document.querySelectorAll("[data-rule]")) {
    const id = chip.dataset.rule;
    chip.firstChild.checked = state.rules.includes(id);
    chip.lastChild.textContent = (counts.get(id) || 0).toLocaleString("en");
    chip.classList.toggle("empty", !counts.get(id));
  }
}

let shownFor = null;
function renderList(state) {
  const { ep, view, cmp, smooth, ...filters } = state;
  const asked = JSON.stringify(filters);
  if (asked !== shownFor) {
    shownFor = asked;
    const base = matching(state);
    renderFilters(state, base);
    found = base.filter((episode) => obeys(episode, state.rules)).sort((SORTS[state.sort || ""] || SORTS[""])[1]);
    numShown = 0;
    $("list").replaceChildren();
    $("list").scrollTop = 0;
    $("list-count").replaceChildren(`${plural(found.length, "episode")} found`, el("span.note", {}, ` of ${data.embedded.toLocaleString("en")} here, ${data.recorded.toLocaleString("en")} recorded`));
    if (!found.length) $("list").append(emptyNote(state));
    showMore();
  }
  const selected = found.findIndex((episode) => episode.key === ep);
  while (selected >= numShown) showMore();
  $("list").querySelector("[aria-current]")?.removeAttribute("aria-current");
  if (selected >= 0) {
    const link = $("list").children[selected].firstChild;
    link.setAttribute("aria-current", "true");
    // Not `scrollIntoView`, which would move the page too.
    const [row, frame] = [link.getBoundingClientRect(), $("list").getBoundingClientRect()];
    if (row.top < frame.top) $("list").scrollTop -= frame.top - row.top;
    else if (row.bottom > frame.bottom) $("list").scrollTop += row.bottom - frame.bottom;
  }
}

function emptyNote(state) {
  const wanted = Number(state.it);
  const near = [...new Set(episodes.map((episode) => episode.iteration))].sort((a, b) => Math.abs(a - wanted) - Math.abs(b - wanted));
  if (!state.it || near.includes(wanted)) return el("li.empty", {}, "Nothing here matches all of these filters.");
  return el("li.empty", {}, `No episode of iteration ${wanted} is recorded; the nearest is `, el("a", { href: linkTo({ it: near[0] }) }, `iteration ${near[0]}`), ".");
}

function showMore() {
  const list = $("list");
  bottom.disconnect();
  for (const episode of found.slice(numShown, numShown + BATCH)) list.append(row(episode));
  numShown = Math.min(found.length, numShown + BATCH);
  if (numShown < found.length) bottom.observe(list.lastChild);
}

const verdictMark = (verdict) => el(`span.verdict.${verdict}`, {}, el("span", { "aria-hidden": "true" }, (VERDICTS[verdict] || VERDICTS.unknown)[0]), ` ${(VERDICTS[verdict] || VERDICTS.unknown)[1]}`);

function row(episode) {
  const behaviours = episode.tags.filter((id) => !OUTCOMES.includes(id));
  return el("li", {}, el("a.row", { href: "#", onclick: (event) => { event.preventDefault(); go({ ep: episode.key }); }, onfocus: (event) => (event.target.href = linkTo({ ep: episode.key })) },
    el("span.line", {}, verdictMark(episode.verdict), el("span.where", {}, `${splitName(episode.split)} · iteration ${episode.iteration}`)),
    bdi(episode.question.slice(0, 200), "span.question"),
    el("span.line.note", {}, bdi(episode.problem_id), data.groups.length > 1 && bdi(` · ${data.runs[episode.run].label}`), episode.advantage != null && ` · advantage\u00a0${digits(episode.advantage)}`),
    behaviours.length > 0 && el("span.line.tags", {}, behaviours.map((id) => el("span.tag", {}, rules.get(id).name)))));
}

function step(by) {
  const state = readState();
  const at = found.findIndex((episode) => episode.key === state.ep);
  const next = at < 0 ? (by > 0 ? 0 : found.length - 1) : at + by;
  if (found[next]) go({ view: "episodes", ep: found[next].key });
}
