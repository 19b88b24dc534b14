"""What each tenant has used, in memory that a router's worker processes share.

A limit holds for the whole router, however many workers accept its connections, so they count in
one table: an anonymous file that every worker inherits and maps. A record lock guards it for the
few microseconds of an update; the kernel frees the lock of a worker that dies. Answers in flight
have a column a worker, so those of a dead one vanish when its successor clears its column.

All values count what is used, so a row of zeros is a tenant that was never seen, and a row whose
use has run down can be given to another tenant: nothing is lost with it.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import mmap
import os
import struct
from collections.abc import Iterator
from typing import Final

_NUM_ROWS: Final = 16_384
_PROBES: Final = 64
"""Rows in which a tenant may be. Were none of them free, the last is shared with another tenant:
both are then limited too early rather than too late."""
_DIGEST_BYTES: Final = 16


@dataclasses.dataclass(slots=True)
class Usage:
    """One tenant's row. Times are those of the monotonic clock, which all processes share."""

    requests: float
    """Used of the limit of requests at `updated`; it runs down as time passes."""
    tokens: float
    updated: float
    expires: float
    """When both have run down to zero."""
    in_flight: int
    """Answers of all workers."""


class CounterTable:
    """The table as one worker, number `worker` of `num_workers`, sees it."""

    def __init__(self, fd: int | None = None, num_workers: int = 1, worker: int = 0) -> None:
        """Maps the table behind `fd`, from `create_counters`; None is a table of its own. Forgets
        what an earlier worker of this number had in flight."""
        assert 0 <= worker < num_workers
        assert fd is not None or num_workers == 1, "several workers need one table"
        self._fd = create_counters(num_workers) if fd is None else fd
        self.num_workers = num_workers
        self._shared = num_workers > 1
        self._column = worker
        self._row = _row_format(num_workers)
        self._memory = mmap.mmap(self._fd, _NUM_ROWS * self._row.size)
        with self._locked():
            self._clear_column()

    def close(self) -> None:
        """Unmaps the table; other workers keep theirs."""
        self._memory.close()
        os.close(self._fd)

    @contextlib.contextmanager
    def usage(self, tenant: str, now: float) -> Iterator[Usage]:
        """A tenant's row, to read and change while no other worker does."""
        digest = hashlib.sha256(tenant.encode("utf-8", "surrogatepass")).digest()[:_DIGEST_BYTES]
        with self._locked():
            offset = self._find(digest, now)
            # Of a row that is shared the owner stays who it is, or it would lose what it used.
            owner, requests, tokens, updated, expires, *columns = self._row.unpack_from(
                self._memory, offset
            )
            in_flight = sum(columns)
            usage = Usage(requests, tokens, updated, expires, in_flight)
            yield usage
            columns[self._column] += usage.in_flight - in_flight
            self._row.pack_into(
                self._memory,
                offset,
                owner,
                usage.requests,
                usage.tokens,
                usage.updated,
                usage.expires,
                *columns,
            )

    def _find(self, digest: bytes, now: float) -> int:
        """The offset of a tenant's row, which it is given if it has none."""
        memory, row = self._memory, self._row
        first = int.from_bytes(digest[:4], "little")
        free = None
        for probe in range(_PROBES):
            offset = (first + probe) % _NUM_ROWS * row.size
            owner = memory[offset : offset + _DIGEST_BYTES]
            if owner == digest:
                return offset
            if free is None:
                _, _, _, _, expires, *columns = row.unpack_from(memory, offset)
                if expires <= now and not any(columns):
                    free = offset
            if not any(owner):
                break  # never used, so no tenant is behind it
        if free is None:
            return offset
        row.pack_into(memory, free, digest, 0.0, 0.0, now, now, *[0] * _num_columns(row))
        return free

    def _clear_column(self) -> None:
        column = self._row.size - 4 * (_num_columns(self._row) - self._column)
        for offset in range(0, len(self._memory), self._row.size):
            struct.pack_into("=i", self._memory, offset + column, 0)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if not self._shared:
            yield
            return
        fcntl.lockf(self._fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)


def create_counters(num_workers: int) -> int:
    """The descriptor of a new, empty table, to be inherited by `num_workers` processes."""
    fd = os.memfd_create("pagelet-router-counters", os.MFD_CLOEXEC)
    os.ftruncate(fd, _NUM_ROWS * _row_format(num_workers).size)
    return fd


def _row_format(num_workers: int) -> struct.Struct:
    """Digest of the tenant's name, then `Usage` with a column of answers in flight a worker."""
    return struct.Struct(f"={_DIGEST_BYTES}sdddd{num_workers}i")


def _num_columns(row: struct.Struct) -> int:
    return (row.size - _row_format(0).size) // 4
