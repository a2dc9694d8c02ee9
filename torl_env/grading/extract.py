r"""Find the answer in a response: what its boxes hold."""

import re

from torl_env.dialect import strip_code

# A box, also of a text escaped twice; an escaped brace is a character of the answer, not a bracket.
_BOX_OR_BRACE = re.compile(r"(\\+(?:boxed|fbox)\s*\{)|\\.|[{}]", re.DOTALL)
_THINKING = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_BETWEEN = re.compile(r"(?:[\s,;.$&]|\\[\[\]();,\\]|\\q?quad|\\text\s*\{\s*(?:and|or)?\s*\}|\band\b|\bor\b)*")


def final_boxes(response: str) -> list[str]:
    r"""Return what the boxes of the closing statement hold, in order; empty if the last box is missing or unfinished.

    Boxes in code and thinking do not count. Thinking is "<think>...</think>", an unclosed one, and whatever stands
    before a "</think>" that was never opened (templates that open it in the prompt). The last box is the answer; those
    before it belong to the same statement while nothing but punctuation, "and" and "or" stands between two of them.
    """
    prose = _THINKING.sub("", strip_code(response)).rpartition("</think>")[2]
    boxes: list[str] = []
    end = 0
    for opening, start, closing in _boxes(prose):
        if closing is None:
            return []
        if not _BETWEEN.fullmatch(prose, end, opening):
            boxes.clear()
        boxes.append(prose[start:closing])
        end = closing + 1
    return boxes


def extract_answer(response: str) -> str | None:
    r"""Return what the last "\boxed{...}" outside code and thinking holds; None if it is missing or unfinished."""
    boxes = final_boxes(response)
    return boxes[-1] if boxes else None


def all_boxes(text: str) -> list[str]:
    r"""Return what each "\boxed{...}" of a text holds, up to the end of the text for an unfinished one."""
    return [text[start:closing] for _, start, closing in _boxes(text)]


def _boxes(text: str) -> list[tuple[int, int, int | None]]:
    """Return where each box starts, where its content starts and where its brace closes; None if it does not."""
    found: list[tuple[int, int, int | None]] = []
    open_braces: list[int | None] = []  # of each, the index of its box
    for match in _BOX_OR_BRACE.finditer(text):
        if match[1]:
            open_braces.append(len(found))
            found.append((match.start(), match.end(), None))
        elif match[0] == "{":
            open_braces.append(None)
        elif match[0] == "}" and open_braces:
            box = open_braces.pop()
            if box is not None:
                found[box] = (*found[box][:2], match.start())
    return found
