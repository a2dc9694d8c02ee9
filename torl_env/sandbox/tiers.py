"""Which tier there is, found out by starting it; never a weaker one than was asked for."""

import asyncio
import logging
import sys
from typing import Protocol

from torl_env.sandbox.interpreter import isolations
from torl_env.sandbox.process import IsolationError, SandboxProcessError, Zygote
from torl_env.sandbox.types import ExecutionResult, RunRequest, Tier
from torl_env.sandbox.unisolated import Unisolated

TIERS = ("auto", "strict", "fallback", "unisolated")
REMEDY = {
    Tier.STRICT: (
        "The strict tier needs unprivileged user namespaces or CAP_SYS_ADMIN: in a container allow `unshare` and "
        "`mount` (docker: --security-opt seccomp=unconfined --security-opt apparmor=unconfined), on the host set "
        "kernel.apparmor_restrict_unprivileged_userns=0 where that exists and user.max_user_namespaces above 0."
    ),
    Tier.FALLBACK: "The fallback tier needs Linux 5.13 or later with `landlock` among its LSMs, and seccomp.",
}
_logger = logging.getLogger("torl_env.sandbox")
_told: set[Tier] = set()


class Interpreter(Protocol):
    """Something that runs programs in one tier, on the event loop it was started on."""

    tier: Tier
    alive: bool

    @property
    def pid(self) -> int: ...

    async def run(self, request: RunRequest, slot: int, memory_mb: int) -> ExecutionResult: ...

    def close(self) -> None: ...


async def start_isolated(tier: str, packages: tuple[str, ...]) -> Interpreter:
    """Start an interpreter with `packages` warm in `tier`, or for "auto" in the better of the isolated ones.

    Raises:
        IsolationError: if this machine does not have the tier; the text names the reason and the remedy.
        SandboxProcessError: if the interpreter does not start for another reason.
    """
    if tier == Tier.UNISOLATED:
        return Unisolated()
    if sys.platform != "linux":
        raise SandboxProcessError(
            f"isolated programs need Linux and this is {sys.platform}; tier='unisolated' runs them with limits only"
        )
    reasons = []
    wanted = [Tier.STRICT, Tier.FALLBACK] if tier == "auto" else [Tier(tier)]
    for isolation in [way for each in wanted for way in isolations(each)]:
        zygote = Zygote(isolation, packages)
        try:
            await zygote.ready()
        except IsolationError as error:
            reasons.append(f"{isolation.tier}: {error}")
            zygote.close()
            continue
        except asyncio.CancelledError:
            zygote.close()
            raise
        if isolation.tier not in _told:
            _told.add(isolation.tier)
            level = logging.INFO if isolation.tier is Tier.STRICT else logging.WARNING
            _logger.log(level, "%s", describe(isolation.tier, "; ".join(reasons)))
        return zygote
    raise IsolationError(f"no {' or '.join(wanted)} isolation here ({'; '.join(reasons)}). {REMEDY[wanted[-1]]}")


async def probe(tier: str) -> Tier:
    """Find out, and log, in which tier programs would run here; raises as `start_isolated` does."""
    interpreter = await start_isolated(tier, ())
    interpreter.close()
    return interpreter.tier


def describe(tier: Tier, reason: str = "") -> str:
    """Return one line that names the tier and, if it is not strict, how to get strict."""
    if tier is Tier.STRICT:
        return "Programs run in the strict tier: namespaces, a private file system, Landlock and seccomp."
    because = f" ({reason})" if reason else ""
    return f"Programs run in the {tier} tier{because}. {REMEDY[Tier.STRICT]}"
