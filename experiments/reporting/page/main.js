// What is shown follows the address; the keyboard changes the address.

let ready = false;  // the episodes are unpacked

function render() {
  if (!ready && readState().view !== "curves") return;
  const state = readState();
  hideTip();
  for (const view of VIEWS) $(view).hidden = view !== state.view;
  const tab = state.view === "curves" ? "curves" : "episodes";
  for (const name of ["curves", "episodes"]) {
    const link = $(`nav-${name}`);
    link.href = linkTo({ view: name, cmp: "" });
    if (name === tab) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (state.view === "curves") renderCurves(state);
  if (state.view === "episodes") {
    renderList(state);
    showEpisode(state.ep);
  }
  if (state.view === "compare") renderCompare(state);
}

function onKey(event) {
  const typing = event.target.closest?.("input:not([type=checkbox]), select, textarea");
  if (event.key === "Escape" && typing) typing.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  const actions = {
    n: () => step(1),
    p: () => step(-1),
    c: () => go({ view: "curves" }),
    e: () => go({ view: "episodes" }),
    "?": () => $("help").showModal(),
    "/": () => { go({ view: "episodes" }); setTimeout(() => $("f-q").focus()); },
    Escape: () => go(readState().view === "compare" ? { view: "episodes", cmp: "" } : { ep: "" }),
  };
  if (!actions[event.key]) return;
  event.preventDefault();
  actions[event.key]();
}

async function start() {
  $("title").append(...visible(data.title));
  $("foot").append(`Written ${data.written} · ${data.embedded.toLocaleString("en")} of ${plural(data.recorded, "recorded episode")} of ${plural(data.runs.length, "run")}`);
  buildCurves();
  render();
  await loadEpisodes();
  buildFilters();
  watchTokens();
  document.addEventListener("keydown", onKey);
  $("help-open").addEventListener("click", () => $("help").showModal());
  document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); $("main").focus(); });
  ready = true;
  render();
  document.documentElement.dataset.ready = "true";
}

addEventListener("hashchange", render);
start();
