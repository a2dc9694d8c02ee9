// How a turn's text becomes elements: code, highlighting and tokens, control characters made visible, long texts folded.

const FOLD = 6000;
const FOLDED = 2000;
// Control, format (bidirectional marks, zero widths, tags), private and lone surrogate characters; not tab or line feed.
const HIDDEN = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\u2028\u2029]/u;
const HIDDEN_RUN = /([\p{Cc}\p{Cf}\p{Co}\p{Cs}\u2028\u2029])/u;

function visible(text) {
  if (!HIDDEN.test(text)) return [document.createTextNode(text)];
  return text.split(HIDDEN_RUN).filter((piece) => piece !== "").map((piece) => {
    if (piece === "\t" || piece === "\n" || !HIDDEN.test(piece)) return document.createTextNode(piece);
    const code = piece.codePointAt(0);
    const name = "U+" + code.toString(16).toUpperCase().padStart(4, "0");
    const shown = code < 0x20 ? String.fromCodePoint(0x2400 + code) : code === 0x7f ? "␡" : name;
    return el("span.hidden-char", { title: name }, shown);
  });
}

// Text of a data set or model outside of a turn: one line, isolated from its surroundings' direction.
const bdi = (text, spec = "bdi") => el(spec, { dir: "auto" }, visible(String(text)));

// Returns the elements of turn.text[0:limit]: tokens inside of code blocks and prose, highlighting inside of tokens.
// `tokens` is [ids, lengths, ...] or null; tokens without text are shown by name if they are special, else not at all.
function turnElements(turn, tokens, limit, index, specials) {
  const root = [];
  const { blocks, marks } = turn;
  let [block, mark, opened, codeElement] = [0, 0, -1, null];
  for (const [start, end, token] of tokenSpans(turn, tokens)) {
    if (start > limit || (start === limit && limit < turn.text.length)) break;
    if (start === end) {
      const name = token >= 0 && specials[tokens[0][token]];
      const inside = opened >= 0 && start < blocks[opened][1];
      if (name) (inside ? codeElement : root).push(tokenSpan(index, token, [el("span.special", {}, visible(name))]));
      continue;
    }
    let [parent, tokenElement] = [null, null];
    for (let from = start, to = 0; from < Math.min(end, limit); from = to) {
      while (block < blocks.length && blocks[block][1] <= from) block += 1;
      while (mark < marks.length && marks[mark][1] <= from) mark += 1;
      const inBlock = block < blocks.length && blocks[block][0] <= from;
      const marked = mark < marks.length && marks[mark][0] <= from;
      const edges = [end, limit, ...(blocks[block] || []), ...(marks[mark] || [])];
      to = Math.min(...edges.filter((edge) => edge > from));
      if (inBlock && opened !== block) {
        opened = block;
        codeElement = [];
        root.push(codeElement);
      }
      const target = inBlock ? codeElement : root;
      const pieces = visible(turn.text.slice(from, to));
      const content = marked ? [el(`span.hl-${marks[mark][2]}`, {}, pieces)] : pieces;
      if (token < 0) target.push(...content);
      else if (parent === target) tokenElement.append(...content);
      else target.push((tokenElement = tokenSpan(index, token, content)));
      parent = target;
    }
  }
  return root.map((item) => (Array.isArray(item) ? el("code.block", {}, item) : item));
}

function tokenSpans(turn, tokens) {
  if (!tokens || !tokens.length) return [[0, turn.text.length, -1]];
  let end = 0;
  return tokens[1].map((length, token) => [end, (end += length), token]);
}

function tokenSpan(turn, token, content) {
  return el("span.tok", { "data-turn": turn, "data-token": token, tabindex: token === 0 ? 0 : -1 }, content);
}

// A turn's text in its box, folded where it is long.
function textBox(turn, tokens, index, specials, onfill = () => {}) {
  const box = el("div.text", { dir: "ltr" });
  const fill = (limit) => {
    const rest = turn.text.length - limit;
    box.replaceChildren(...turnElements(turn, tokens, limit, index, specials));
    if (rest > 0) {
      const open = () => fill(turn.text.length);
      box.append(el("button.unfold", { type: "button", onclick: open }, `Show ${rest.toLocaleString("en")} more characters`));
    }
    if (turn.cut) box.append(el("p.notice", {}, `${turn.cut.toLocaleString("en")} characters are left out of this report; the record has them.`));
    onfill(box);
  };
  fill(turn.text.length > FOLD ? FOLDED : turn.text.length);
  return box;
}
