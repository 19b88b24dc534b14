"""Ports for processes that cannot choose their own."""

import socket


def free_ports() -> int:
    """The first of two free ports next to each other."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port: int = first.getsockname()[1]
            try:
                with socket.create_server(("127.0.0.1", port + 1)):
                    return port
            except OSError:
                continue
