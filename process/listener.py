"""Listening sockets. A supervisor holds them, so that a port stays its own, and connections can
wait, while the process that answers restarts."""

import errno
import os
import socket

_BACKLOG = 2048


class ListenError(Exception):
    """The address cannot be listened on; the message says why and what to change."""


def bind(host: str, port: int) -> socket.socket:
    """A listening TCP socket; port 0 takes a free one. Raises `ListenError`."""
    listener = reserve(host, port)
    try:
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ListenError(_explain(error, host, port)) from None
    return listener


def inherit(fd: int) -> socket.socket:
    """A listening socket that the parent process holds. Raises `ListenError`."""
    try:
        listener = socket.socket(fileno=fd)
        if listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return listener
        listener.detach()
    except OSError:
        pass
    raise ListenError(f"file descriptor {fd} is no listening socket of the process that started it")


def reserve(host: str, port: int) -> socket.socket:
    """A socket that holds a TCP port without listening: nobody else is given it, but a child can
    `bind` it, again and again. Port 0 takes a free one. Raises `ListenError`."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ListenError(
            f"--host {host}: {error.strerror}; give an address of this machine"
        ) from None
    holder = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Linux lets two sockets with this option hold a port while neither listens.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and host == "::":
            holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        holder.bind(address)
    except OSError as error:
        holder.close()
        raise ListenError(_explain(error, host, port)) from None
    return holder


def url(listener: socket.socket) -> str:
    """The URL of the API as a person on this machine would type it."""
    host, port, *_ = listener.getsockname()
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{port}/v1"


def _explain(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is in use by another process (address already in use); "
            "give another --port, or 0 for a free one"
        )
    if error.errno == errno.EACCES:
        return f"port {port} needs root's rights; give a --port of 1024 or above"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host} is no address of this machine; 0.0.0.0 listens on all of them"
    return f"cannot listen on {host} port {port}: {os.strerror(error.errno or 0)}"
