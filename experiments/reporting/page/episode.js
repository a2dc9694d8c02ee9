// One episode: its facts, turns and tokens, its group, and the same problem elsewhere.

let heat = false;
let current = null;  // {episode, tokens} of what the tip describes, by turn box

const fact = (name, ...value) => el("div", {}, el("dt", {}, name), el("dd", {}, value));
const ROLES = { prompt: "Prompt", response: "Model", observation: "Tool output · not trained on" };

function turnElement(episode, tokens, index) {
  const turn = episode.turns[index];
  const own = tokens && tokens[index];
  const box = textBox(turn, own && own.length ? own : null, index, data.runs[episode.run].specials, (text) => colorTokens(text, own));
  const calls = callsByTurn(episode);
  const call = turn.role === "observation" && calls.get(index - 1);
  const head = el("header", {}, el("span", {}, ROLES[turn.role] || turn.role),
    call && el(`span.status.${call.status}`, {}, call.status.replace("_", " "), el("span.note", {}, ` ran ${digits(call.run_s * 1000, 0)} ms, waited ${digits(call.wait_s * 1000, 0)} ms`)));
  return el(`div.turn.${turn.role}`, { role: "group", "aria-label": `${ROLES[turn.role] || turn.role}, turn ${index}` }, head, box);
}

// The n-th program belongs to the n-th response that an observation follows, unless the request had no program.
function callsByTurn(episode) {
  const calls = [...episode.tool_calls];
  const found = new Map();
  episode.turns.forEach((turn, index) => {
    const asked = turn.role === "response" && episode.turns[index + 1]?.role === "observation";
    if (asked && turn.blocks.length && calls.length) found.set(index, calls.shift());
  });
  return found;
}

function colorTokens(box, own) {
  for (const span of box.querySelectorAll(".tok")) {
    const logp = own[2]?.[span.dataset.token];
    span.classList.toggle("masked", logp == null);
    span.dataset.heat = heat && logp != null ? Math.min(5, Math.floor(-logp / 1e6 / 0.5)) : "";
  }
}

async function showEpisode(key) {
  const episode = byKey.get(key);
  const article = $("episode");
  document.body.classList.toggle("has-episode", Boolean(episode));
  if (!episode) {
    const last = article.dataset.key;
    delete article.dataset.key;
    const isLost = document.activeElement === document.body || article.contains(document.activeElement);
    article.replaceChildren(el("p.notice", {}, key ? "This episode is not in the report." : "Choose an episode from the list, or press n."));
    if (last && isLost) $("list").children[found.indexOf(byKey.get(last))]?.firstChild.focus();
    return;
  }
  if (article.dataset.key === key) return;
  const tokens = await tokensOf(episode);
  if (readState().ep !== key) return;
  article.dataset.key = key;
  article.replaceChildren(...episodeParts(episode, tokens));
  article.current = { episode, tokens };
  article.scrollTop = 0;
  // In a narrow window the list, and with it the row that had the focus, is hidden now.
  if (!$("list").getClientRects().length) article.focus({ preventScroll: true });
  const at = found.indexOf(episode) + 1;
  $("announced").replaceChildren(`Episode ${at ? `${at} of ${found.length}` : "outside of the list"}: ${(VERDICTS[episode.verdict] || VERDICTS.unknown)[1]}, `, bdi(episode.problem_id));
}

function episodeParts(episode, tokens) {
  const terms = Object.entries(episode.reward_terms).map(([name, value]) => `${name} ${digits(value)}`).join(", ");
  const at = found.findIndex((one) => one.key === episode.key);
  const button = (text, action, id, off) => el(`button#${id}`, { type: "button", onclick: action, disabled: off }, text);
  return [
    el("div.bar", {}, button("← List", () => go({ ep: "" }), "back"), button("Previous", () => step(-1), "previous", at <= 0), button("Next", () => step(1), "next", at === found.length - 1),
      el("a#to-curves.button", { href: linkTo({ view: "curves", it: episode.iteration, ep: "" }) }, "Curves at this iteration"),
      el("label.chip", {}, el("input#heat", { type: "checkbox", checked: heat, disabled: !tokens, onchange: toggleHeat }), "Colour tokens by probability")),
    el("header.episode-head", {}, el("h2", {}, verdictMark(episode.verdict), " ", bdi(episode.problem_id)),
      el("p.question", { dir: "auto" }, visible(episode.question.slice(0, 2000))),
      el("p.tags", {}, episode.tags.filter((id) => !OUTCOMES.includes(id)).map((id) => el("span.tag", { title: rules.get(id).sentence }, rules.get(id).name)))),
    el("dl.facts", {},
      fact("Answer", episode.boxed == null ? "none boxed" : bdi(episode.boxed)), fact("Gold", bdi(episode.answer)),
      fact("Reward", digits(episode.reward), terms && el("span.note", {}, ` ${terms}`)), fact("Advantage", digits(episode.advantage, 3)),
      fact("Sampled", `${splitName(episode.split)}, iteration ${episode.iteration}`), fact("Run", bdi(data.runs[episode.run].label)),
      fact("Ended", episode.stop_reason.replaceAll("_", " "), episode.truncated && el("span.note", {}, " truncated")), fact("Tokens", `${episode.num_response_tokens} sampled of ${episode.num_tokens}`),
      fact("Policy version", episode.policy_version), fact("Took", `${digits(episode.duration_s)} s`), fact("Record", `line ${episode.line} of episodes.jsonl`)),
    episode.error && el("pre.error", {}, visible(episode.error)),
    !tokens && el("p.notice", {}, "Its tokens are not shown: the run folder has no tokenizer.json that reads them as this text."),
    el("div.turns", {}, episode.turns.map((turn, index) => (index === 0
      ? el("details.prompt", {}, el("summary", {}, "Whole prompt"), turnElement(episode, tokens, 0)) : turnElement(episode, tokens, index)))),
    elsewhere(episode), mates(episode),
  ].filter(Boolean);
}

function toggleHeat(event) {
  heat = event.target.checked;
  const { tokens } = $("episode").current;
  $("episode").querySelectorAll(".text").forEach((box, index) => colorTokens(box, (tokens && tokens[index]) || []));
}

function mates(episode) {
  if (episode.mates.length < 2) return null;
  const key = (sample) => [episode.run, episode.split, episode.iteration, episode.group_id, sample].join(".");
  return el("section.card.mates", { "aria-label": "Group" }, el("h3", {}, `Group of ${episode.mates.length}`), el("p.note", {}, "Episodes of this problem in this iteration; advantages are relative to their rewards."),
    tableBody("Episodes of the group", ["sample", "verdict", "reward", "advantage"], episode.mates.map(([sample, verdict, reward, advantage]) => [
      el("th", { scope: "row" }, byKey.has(key(sample)) ? el("a", { href: linkTo({ ep: key(sample) }), "aria-current": sample === episode.sample_index && "true" }, sample) : el("span", { title: "recorded, not in this file" }, sample)),
      el("td", {}, verdictMark(verdict)), el("td", {}, digits(reward)), el("td", {}, digits(advantage, 3))])));
}

// Files of problems without ids number their rows alike, so the id alone does not tell.
const isSameProblem = (a, b) => a.problem_id === b.problem_id && a.answer === b.answer
  && (a.turns[0].text.includes(b.question) || b.turns[0].text.includes(a.question));

// One episode per run, split and iteration of the same problem, this one for its own.
function versions(episode) {
  const places = new Map();
  for (const other of episodes) {
    const place = [other.run, other.split, other.iteration].join(".");
    if (isSameProblem(other, episode) && (!places.has(place) || other.key === episode.key)) places.set(place, other);
  }
  return [...places.values()];
}

function elsewhere(episode) {
  const others = versions(episode);
  if (others.length < 2) return null;
  const own = others.filter((other) => other.run === episode.run);
  const first = [...new Set([own[0], episode, own.at(-1), ...others.filter((other) => other.run !== episode.run).slice(-1)])].slice(0, 3);
  return el("section.card.elsewhere", { "aria-label": "The same problem elsewhere" }, el("h3", {}, "The same problem elsewhere"),
    el("p", {}, el("a#to-compare.button", { href: linkTo({ view: "compare", ep: episode.key, cmp: first.map((one) => one.key) }) }, "Side by side")),
    el("ul", {}, others.map((other) => el("li", {}, el("a", { href: linkTo({ ep: other.key }), "aria-current": other === episode && "true" },
      `${splitName(other.split)}, iteration ${other.iteration} `), verdictMark(other.verdict), data.groups.length > 1 && bdi(` ${data.runs[other.run].label}`, "span.note")))));
}
