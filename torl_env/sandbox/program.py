"""A program's run inside its confined process: as `python -c` would, up to the return code.

Runs inside the sandbox's own interpreters: standard library only. Whatever is reachable from these frames is reachable
by the program: nothing here may hold what it should not see.
"""

import ast
import atexit
import io
import linecache
import os
import random
import sys
import threading
import traceback
import types

_FILE_NAME = "<string>"
# Compiled, run and failed once before the first fork: doing a thing for the first time in a child costs a millisecond.
_WARM_UP = b"""
import math
def f(x, *rest, key=None):
    total = 0
    for i in range(x):
        total += i ** 2 if i % 2 else -i
    return [total, {"a": key}, (1.5, f"{total:>3}")]
print(f(3), sum(n for n in range(4)), end="")
undefined
"""


def warm_up() -> None:
    """Do once what every program does; its output goes nowhere."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
    try:
        _execute(_WARM_UP, echo_last_expr=False)
    finally:
        sys.stdout, sys.stderr = streams


def reseed(seed: int | None) -> None:
    """Seed every generator a fork would have copied, from the operating system's entropy unless `seed` is given."""
    if seed is None:
        seed = int.from_bytes(os.urandom(16), "big")
    random.seed(seed)
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed(seed & 0xFFFFFFFF)
    if (sympy_random := sys.modules.get("sympy.core.random")) is not None:
        sympy_random.rng.seed(seed)


def run_program(code: bytes, *, echo_last_expr: bool) -> int:
    """Run `code` up to the return code; the interpreter is not taken down after it, which would cost 35 ms."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # what was printed survives a kill
    return_code = _execute(code, echo_last_expr)
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the program's threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception:  # a full disk, or whatever the program put in the stream's place
            return_code = return_code or 120  # as Python does
    return return_code


def _execute(code: bytes, echo_last_expr: bool) -> int:
    sys.argv = ["-c"]
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    text = code.decode("utf-8", "replace")
    linecache.cache[_FILE_NAME] = (len(text), None, text.splitlines(keepends=True), _FILE_NAME)
    try:
        if echo_last_expr:
            _exec_and_echo(code, main.__dict__)
        else:
            exec(compile(code, _FILE_NAME, "exec", dont_inherit=True), main.__dict__)
    except SystemExit as error:
        return _exit_code(error)
    except BaseException as error:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_globals is globals():
            frames = frames.tb_next  # without this module's own frames
        _report(error.with_traceback(frames))
        return 1
    return 0


def _exec_and_echo(code: bytes, namespace: dict[str, object]) -> None:
    """Run `code`, then show its last line's value if that line is an expression, as a notebook does."""
    tree = ast.parse(code, _FILE_NAME)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, _FILE_NAME, "exec", dont_inherit=True), namespace)
    if isinstance(last, ast.Expr):
        sys.displayhook(eval(compile(ast.Expression(last.value), _FILE_NAME, "eval", dont_inherit=True), namespace))


def _report(error: BaseException) -> None:
    try:
        if sys.excepthook is not sys.__excepthook__:
            sys.excepthook(type(error), error, error.__traceback__)
            return
    except Exception:  # the program put its own in place
        pass
    try:
        traceback.print_exception(error)  # with source lines, which the interpreter's own printer has no file for
    except Exception:
        sys.__excepthook__(type(error), error, error.__traceback__)


def _exit_code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    print(error.code, file=sys.stderr)
    return 1
