// The same problem at several iterations or in several runs, side by side; and what a token's tip says.

async function renderCompare(state) {
  const chosen = state.cmp.map((key) => byKey.get(key)).filter(Boolean);
  const target = $("compare");
  if (!chosen.length) {
    target.replaceChildren(el("p.notice", {}, "Open an episode whose problem was sampled more than once, and choose “Side by side” there."));
    return;
  }
  const tokens = await Promise.all(chosen.map(tokensOf));
  const choices = versions(chosen[0]);
  for (const one of chosen) if (!choices.includes(one)) choices.push(one);
  const toggle = (event) => {
    const keys = new Set(readState().cmp);
    if (event.target.checked) keys.add(event.target.value);
    else keys.delete(event.target.value);
    go({ cmp: choices.map((one) => one.key).filter((key) => keys.has(key)) });
  };
  target.replaceChildren(
    el("div.bar", {}, el("a#leave-compare.button", { href: linkTo({ view: "episodes", cmp: "" }) }, "← Episode")),
    el("header.episode-head", {}, el("h2", {}, bdi(chosen[0].problem_id)), el("p.question", { dir: "auto" }, visible(chosen[0].question.slice(0, 2000))), el("p", {}, "Gold ", el("strong", {}, bdi(chosen[0].answer)))),
    el("fieldset.versions", {}, el("legend", {}, "Shown"), choices.map((one) => el("label.chip", {},
      el("input", { type: "checkbox", value: one.key, checked: chosen.includes(one), onchange: toggle }),
      el("span", {}, `${splitName(one.split)} ${one.iteration}`), data.groups.length > 1 && bdi(` ${data.runs[one.run].label}`, "span.note"), verdictMark(one.verdict)))),
    el("div.columns", {}, chosen.map((episode, place) => {
      const column = el("article.column", { "aria-label": `${splitName(episode.split)}, iteration ${episode.iteration}` },
        el("header", {}, el("h3", {}, el("a", { href: linkTo({ view: "episodes", ep: episode.key, cmp: "" }) }, `${splitName(episode.split)}, iteration ${episode.iteration}`)),
          verdictMark(episode.verdict), data.groups.length > 1 && bdi(data.runs[episode.run].label, "p.note"),
          el("p.tags", {}, episode.tags.filter((id) => !OUTCOMES.includes(id)).map((id) => el("span.tag", {}, rules.get(id).name)))),
        episode.turns.slice(1).map((_, index) => turnElement(episode, tokens[place], index + 1)));
      column.current = { episode, tokens: tokens[place] };
      return column;
    })));
}

// The tip of a token, by pointer or by keyboard.
function describe(span) {
  const { episode, tokens } = span.closest("article").current;
  const [turn, token] = [Number(span.dataset.turn), Number(span.dataset.token)];
  const [ids, , sampler, learner] = tokens[turn];
  const line = (name, value) => [el("dt", {}, name), el("dd", {}, value)];
  const nats = (millionths) => `${(millionths / 1e6).toFixed(6)}  (p = ${Math.exp(millionths / 1e6).toPrecision(3)})`;
  const seen = learner && learner.length > 0;
  return el("dl", {},
    line("token id", String(ids[token])),
    line("log-prob, sampler", sampler ? nats(sampler[token]) : "not sampled"),
    line("log-prob, learner", seen ? nats(learner[token]) : "not computed"),
    seen && line("difference", ((learner[token] - sampler[token]) / 1e6).toExponential(1)),
    line("loss mask", sampler ? "1 · trained on" : "0 · not trained on"),
    line("policy version", String(episode.policy_version)));
}

function showTip(span) {
  const tip = $("tip");
  tip.replaceChildren(describe(span));
  tip.hidden = false;
  document.querySelector(".tok[aria-describedby]")?.removeAttribute("aria-describedby");
  span.setAttribute("aria-describedby", "tip");
  const place = span.getClientRects()[0] || span.getBoundingClientRect();
  const above = place.top > tip.offsetHeight + 12;
  tip.style.left = `${Math.max(8, Math.min(place.left, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${above ? place.top - tip.offsetHeight - 6 : place.bottom + 6}px`;
}

const hideTip = () => ($("tip").hidden = true);

function watchTokens() {
  const at = (event) => event.target.closest?.(".tok");
  document.addEventListener("pointerover", (event) => (at(event) ? showTip(at(event)) : hideTip()));
  document.addEventListener("focusin", (event) => (at(event) ? showTip(at(event)) : hideTip()));
  document.addEventListener("scroll", hideTip, true);
  document.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by || !at(event)) return;
    const all = [...event.target.closest("article").querySelectorAll(".tok")].filter((span) => span.getClientRects().length);
    const next = all[all.indexOf(event.target) + by];
    if (next) next.focus();
    event.preventDefault();
  });
}
