"""Ports for servers that a test starts."""

import random
import socket


def free_ports(number: int) -> list[int]:
    """Return ports that are free now, from below the range out of which the system gives others theirs.

    A port of that range, free when it is asked for, may be some process's own before the server has started.
    """
    found: list[int] = []
    for port in random.sample(range(20_000, 32_000), 200):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        found.append(port)
        if len(found) == number:
            return found
    raise OSError(f"{number} free ports were not found.")
