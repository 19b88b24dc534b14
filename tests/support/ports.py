"""Ports for processes that cannot choose their own."""

import socket

from pagelet.bench.server import HOST, free_port


def free_ports() -> int:
    """The first of two free ports next to each other."""
    while True:
        port = free_port()
        try:
            with socket.create_server((HOST, port + 1)):
                return port
        except OSError:
            continue
