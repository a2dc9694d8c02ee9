"""The process that asks math-verify; started by `workers.py` as a file, it imports nothing of ours.

It imports math-verify once, which takes a second, and then forks a child in milliseconds for each socket it is sent
over its standard input (a socket itself): one byte with one file descriptor. It writes one byte when it is ready for
them. A child writes lines to its socket, and answers requests, one at a time:

    {"pid": 71}                                          first of all; also the number of its process group
    {"gold": LaTeX, "answer": LaTeX}  ->  {"verdict": v}     true, false, or null when math-verify itself failed

A request that will not end is not its business: the owner kills the child. If the owner has died, the parent ends, and
with it, at once, its children.
"""

import ctypes
import gc
import json
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_MEMORY_BYTES = 2 * 2**30
_TOLERANCE = 1.01e-6  # a decimal stands for a number it agrees with to six places; relative to numbers below 1

# The parser and sympy build and import parts of themselves when a construct first comes up, 0.1-0.3 s of a child's time
# each; a second spent here once spares every child that.
_WARM_UP = [
    ("\\frac{1}{\\sqrt{2}}", "\\frac{\\sqrt{2}}{2}"),
    ("x^2-1", "(x-1)(x+1)"),
    ("(0,1]", "[0,1)"),
    ("\\frac{\\pi}{2}+1", "\\sqrt[3]{2}"),
    ("x\\leq 2", "2<x\\leq 3"),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix}1\\\\3\\end{pmatrix}"),
    ("f(x)=2x", "f(x)=\\frac{1}{x}"),
    ("\\binom{n}{k}", "n!"),
    ("\\sin x\\cos 2x", "\\log_2 x"),
    ("2^{n-1}", "e^{-t}"),
    ("\\lfloor x\\rfloor", "|x|"),
    ("a_1+b", "a_{12}"),
    ("3+4i", "\\sum_{k=1}^{n}k"),
    ("x^2+y^2=1", "y=2x+1"),
]


def main() -> None:
    """Fork a child for each socket that comes until no more can come."""
    owner = socket.socket(fileno=0)
    logging.disable(logging.CRITICAL)  # math-verify warns once that its time-outs are off
    is_equal = load_math_verify()
    for gold, answer in _WARM_UP:
        is_equal(gold, answer)
    gc.freeze()  # a child's collector would touch, and so copy, every page
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    libc, parent = ctypes.CDLL(None), os.getpid()
    owner.sendall(b"r")
    while True:
        byte, sockets, _, _ = socket.recv_fds(owner, 1, 1)
        if not byte:
            return
        if os.fork() == 0:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it died before
                os._exit(0)
            owner.close()
            answer_requests(socket.socket(fileno=sockets[0]), is_equal)
            os._exit(0)
        os.close(sockets[0])


def answer_requests(channel: socket.socket, is_equal: Callable[[str, str], bool]) -> None:
    """Answer requests until there are no more."""
    os.setpgid(0, 0)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    channel.sendall(json.dumps({"pid": os.getpid()}).encode() + b"\n")
    for line in channel.makefile():
        request = json.loads(line)
        try:
            verdict = is_equal(request["gold"], request["answer"])
        except Exception:  # whatever a computer algebra system does with a model's formula: unknown, never a verdict
            verdict = None
        channel.sendall(json.dumps({"verdict": verdict}).encode() + b"\n")


def load_math_verify() -> Callable[[str, str], bool]:
    """Import math-verify and return (gold LaTeX, answer LaTeX) -> equal."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify
    from sympy import Expr, Float

    # LaTeX in a box is all that is looked for, and its first reading is the only one: the others take a fragment for
    # the answer. Units are our rules' (`rules.py`): math-verify would take the "m" of "2m" for metres.
    normalization = NormalizationConfig(units=False, malformed_operators=True, nits=True, boxed="last")
    extraction = [LatexExtractionConfig(boxed_match_priority=0, normalization_config=normalization)]

    def parsed(latex: str) -> list[Any]:
        return parse(f"\\boxed{{{latex}}}", extraction, extraction_mode="first_match", parsing_timeout=None)

    def is_equal(gold: str, answer: str) -> bool:
        parsed_gold, parsed_answer = parsed(gold), parsed(answer)
        if len(parsed_gold) == len(parsed_answer) == 2:  # both with a parse before the text
            left, right = parsed_gold[0], parsed_answer[0]
            if isinstance(left, Expr) and isinstance(right, Expr) and (left.has(Float) or right.has(Float)):
                difference, size = (left - right).evalf(30), left.evalf(30)
                if difference.is_number and size.is_number:
                    return bool(abs(difference) <= _TOLERANCE * min(1, abs(size)))
        return verify(parsed_gold, parsed_answer, allow_set_relation_comp=True, timeout_seconds=None)

    return is_equal


if __name__ == "__main__":
    main()
