"""The process that asks math-verify; started by `grading_workers.py` as a file, it imports nothing of ours.

Reads requests {"gold": LaTeX, "answer": LaTeX} from standard input, one JSON object a line, and answers each with a
line: true, false, or null when math-verify itself failed. Ends with its input. A request that will not end is not its
business: the owner kills it; if the owner has died, the CPU limit below does.
"""

import json
import logging
import os
import resource
import sys

_OWNERLESS_CPU_S = 30  # far past any owner's time limit
_MEMORY_BYTES = 2 * 2**30


def main() -> None:
    """Answer requests until there are no more."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no reply
    logging.disable(logging.CRITICAL)  # math-verify warns once that its time-outs are off
    from math_verify import LatexExtractionConfig, parse, verify

    # In a box, LaTeX is all that is looked for: falling back to plain expressions parses fragments of an answer.
    extraction = [LatexExtractionConfig(boxed_match_priority=0)]

    def is_equal(gold: str, answer: str) -> bool:
        parsed_gold = parse(f"\\boxed{{{gold}}}", extraction, parsing_timeout=None)
        parsed_answer = parse(f"\\boxed{{{answer}}}", extraction, parsing_timeout=None)
        return verify(parsed_gold, parsed_answer, timeout_seconds=None)

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    is_equal("\\frac{1}{2}", "0.5")  # the first call builds the parser; not at the expense of an answer's time limit
    replies.write("ready\n")
    replies.flush()
    for line in sys.stdin:
        used = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s = int(used.ru_utime + used.ru_stime) + _OWNERLESS_CPU_S
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, resource.RLIM_INFINITY))
        request = json.loads(line)
        try:
            verdict = is_equal(request["gold"], request["answer"])
        except Exception:  # whatever a computer algebra system does with a model's formula: unknown, never a verdict
            verdict = None
        replies.write(json.dumps(verdict) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
