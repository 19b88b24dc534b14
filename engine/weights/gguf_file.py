"""A memory-mapped reader of GGUF files, versions 2 and 3.

It exists because the `gguf` package's reader makes an array of every element of the metadata: 3.2 s
for SmolLM2's vocabulary of 49,152 tokens, where this takes about 0.05 s. The layout is that of
ggml's `docs/gguf.md`. A file is never trusted: each count, length and offset is checked against
what is left of the file before anything is allocated.
"""

import dataclasses
import enum
import math
import mmap
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pagelet.protocol.errors import ModelSourceError

# The mmap module has no name for it before Python 3.13.
_MAP_NORESERVE: Final = 0x4000 if sys.platform == "linux" else 0


class GGUFError(ModelSourceError):
    """A GGUF file is damaged, or is of a version or type that can't be read."""


class GGMLType(enum.IntEnum):
    """Element types, by the number that stands in the file."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39

    @property
    def block_size(self) -> int:
        """Elements a block."""
        return _BLOCKS[self][0]

    @property
    def block_bytes(self) -> int:
        """Bytes a block."""
        return _BLOCKS[self][1]


# Elements and bytes a block: a block's bytes are its scales and the packed elements.
_BLOCKS: Final[dict[GGMLType, tuple[int, int]]] = {
    GGMLType.F32: (1, 4),
    GGMLType.F16: (1, 2),
    GGMLType.Q4_0: (32, 2 + 16),
    GGMLType.Q4_1: (32, 2 + 2 + 16),
    GGMLType.Q5_0: (32, 2 + 4 + 16),
    GGMLType.Q5_1: (32, 2 + 2 + 4 + 16),
    GGMLType.Q8_0: (32, 2 + 32),
    GGMLType.Q8_1: (32, 4 + 4 + 32),
    GGMLType.Q2_K: (256, 2 + 2 + 16 + 64),
    GGMLType.Q3_K: (256, 2 + 64 + 32 + 12),
    GGMLType.Q4_K: (256, 2 + 2 + 12 + 128),
    GGMLType.Q5_K: (256, 2 + 2 + 12 + 32 + 128),
    GGMLType.Q6_K: (256, 2 + 128 + 64 + 16),
    GGMLType.Q8_K: (256, 4 + 256 + 32),
    GGMLType.IQ2_XXS: (256, 2 + 64),
    GGMLType.IQ2_XS: (256, 2 + 64 + 8),
    GGMLType.IQ3_XXS: (256, 2 + 64 + 32),
    GGMLType.IQ1_S: (256, 2 + 32 + 16),
    GGMLType.IQ4_NL: (32, 2 + 16),
    GGMLType.IQ3_S: (256, 2 + 64 + 32 + 8 + 4),
    GGMLType.IQ2_S: (256, 2 + 64 + 16),
    GGMLType.IQ4_XS: (256, 2 + 2 + 128 + 4),
    GGMLType.I8: (1, 1),
    GGMLType.I16: (1, 2),
    GGMLType.I32: (1, 4),
    GGMLType.I64: (1, 8),
    GGMLType.F64: (1, 8),
    GGMLType.IQ1_M: (256, 32 + 16 + 8),
    GGMLType.BF16: (1, 2),
    GGMLType.TQ1_0: (256, 2 + 4 + 48),
    GGMLType.TQ2_0: (256, 2 + 64),
    GGMLType.MXFP4: (32, 1 + 16),
}


@dataclasses.dataclass(frozen=True)
class GGUFTensor:
    """Where a tensor lies in the file."""

    name: str
    shape: tuple[int, ...]
    """In torch's order, slowest dimension first: GGUF's reversed."""
    ggml_type: GGMLType
    offset: int
    """Bytes from the start of the file."""
    nbytes: int


class GGUFFile:
    """An open GGUF file: its metadata, read; its tensors, mapped.

    Raises GGUFError if the file is not a sound GGUF file.
    """

    path: Path
    metadata: dict[str, Any]
    """Scalars, strings, `list[str]` for arrays of strings and ndarray for arrays of numbers."""
    tensors: dict[str, GGUFTensor]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size == 0:
                    raise GGUFError(f"{self.path}: the file is empty")
                # Private and writable, so that torch takes a tensor's bytes without a copy and
                # without a warning; no reserve, as nothing ever writes.
                self._map = mmap.mmap(
                    file.fileno(),
                    0,
                    flags=mmap.MAP_PRIVATE | _MAP_NORESERVE,
                    prot=mmap.PROT_READ | mmap.PROT_WRITE,
                )
        except OSError as error:
            raise GGUFError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        self.metadata, self.tensors = _Parser(self.path, self._map).parse()
        self._bytes = np.frombuffer(self._map, dtype=np.uint8)

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor as they lie in the file, without a copy. KeyError if absent."""
        tensor = self.tensors[name]
        return self._bytes[tensor.offset : tensor.offset + tensor.nbytes]


_SCALARS: Final[dict[int, str]] = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "|b1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_STRING: Final = 8
_ARRAY: Final = 9
_MAX_ARRAY_DEPTH: Final = 4
_MAX_DIMENSIONS: Final = 4
_MIN_METADATA_BYTES: Final = 8 + 4 + 1  # key length, value type, the smallest value
_MIN_TENSOR_BYTES: Final = 8 + 4 + 4 + 8  # name length, dimensions, type, offset


class _Parser:
    """One pass over the header: magic and counts, metadata, tensor descriptions."""

    def __init__(self, path: Path, buffer: mmap.mmap) -> None:
        self._path = path
        self._buffer = buffer
        self._size = len(buffer)
        self._position = 0

    def parse(self) -> tuple[dict[str, Any], dict[str, GGUFTensor]]:
        if self._take(4, "magic number") != b"GGUF":
            raise self._error("not a GGUF file: it doesn't start with `GGUF`")
        version = self._u32("version")
        if version not in (2, 3):
            if version & 0xFFFF == 0:
                raise self._error("big-endian GGUF files are not supported")
            raise self._error(f"GGUF version {version} is not supported: only 2 and 3 are")
        num_tensors = self._u64("tensor count")
        num_metadata = self._u64("metadata count")
        self._check_count(num_metadata, _MIN_METADATA_BYTES, "metadata entries")
        metadata = self._read_metadata(num_metadata)
        self._check_count(num_tensors, _MIN_TENSOR_BYTES, "tensors")
        return metadata, self._read_tensors(num_tensors, self._alignment(metadata))

    def _read_metadata(self, count: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for _ in range(count):
            key = self._string("metadata key")
            if key in metadata:
                raise self._error(f"metadata key {key!r} appears twice")
            metadata[key] = self._value(self._u32(f"type of {key!r}"), key, depth=0)
        return metadata

    def _value(self, kind: int, key: str, depth: int) -> Any:
        if kind in _SCALARS:
            dtype = np.dtype(_SCALARS[kind])
            return np.frombuffer(self._take(dtype.itemsize, key), dtype=dtype)[0].item()
        if kind == _STRING:
            return self._string(key)
        if kind != _ARRAY:
            raise self._error(f"metadata {key!r} has the unknown type {kind}")
        if depth == _MAX_ARRAY_DEPTH:
            raise self._error(f"metadata {key!r} nests arrays deeper than {_MAX_ARRAY_DEPTH}")
        element = self._u32(f"element type of {key!r}")
        count = self._u64(f"length of {key!r}")
        if element in _SCALARS:
            dtype = np.dtype(_SCALARS[element])
            self._check_count(count, dtype.itemsize, f"elements of {key!r}")
            return np.frombuffer(self._take(count * dtype.itemsize, key), dtype=dtype)
        self._check_count(count, 8, f"elements of {key!r}")
        if element == _STRING:
            return self._strings(count, key)
        return [self._value(element, key, depth + 1) for _ in range(count)]

    def _strings(self, count: int, key: str) -> list[str]:
        # The one loop over a vocabulary: local names, and no call of our own for each string.
        buffer, size, position = self._buffer, self._size, self._position
        unpack: Callable[[mmap.mmap, int], tuple[int]] = struct.Struct("<Q").unpack_from
        strings: list[str] = []
        try:
            for _ in range(count):
                start = position + 8
                position = start + unpack(buffer, position)[0]
                if position > size:
                    raise self._truncated(f"a string of {key!r}")
                strings.append(buffer[start:position].decode())
        except struct.error as error:
            raise self._truncated(f"a string of {key!r}") from error
        except UnicodeDecodeError as error:
            raise self._error(f"string {len(strings)} of {key!r} is not UTF-8") from error
        self._position = position
        return strings

    def _alignment(self, metadata: dict[str, Any]) -> int:
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self._error(f"general.alignment is {alignment!r}, not a power of two")
        return alignment

    def _read_tensors(self, count: int, alignment: int) -> dict[str, GGUFTensor]:
        relative = [self._read_tensor(alignment) for _ in range(count)]
        start = -(-self._position // alignment) * alignment
        tensors: dict[str, GGUFTensor] = {}
        for tensor in relative:
            if tensor.name in tensors:
                raise self._error(f"tensor {tensor.name!r} appears twice")
            offset = start + tensor.offset
            if offset + tensor.nbytes > self._size:
                raise self._error(
                    f"truncated: tensor {tensor.name!r} ends at byte {offset + tensor.nbytes}, "
                    f"the file at {self._size}; download it again"
                )
            tensors[tensor.name] = dataclasses.replace(tensor, offset=offset)
        return tensors

    def _read_tensor(self, alignment: int) -> GGUFTensor:
        """One description, its offset still counted from the start of the data."""
        name = self._string("tensor name")
        num_dimensions = self._u32(f"dimensions of {name!r}")
        if num_dimensions > _MAX_DIMENSIONS:
            raise self._error(f"tensor {name!r} has {num_dimensions} dimensions, 4 at most")
        dimensions = [self._u64(f"shape of {name!r}") for _ in range(num_dimensions)]
        number = self._u32(f"type of {name!r}")
        try:
            ggml_type = GGMLType(number)
        except ValueError as error:
            raise self._error(f"tensor {name!r} has the unknown type {number}") from error
        if any(size == 0 for size in dimensions):
            raise self._error(f"tensor {name!r} has an empty dimension: {dimensions}")
        row = dimensions[0] if dimensions else 1
        if row % ggml_type.block_size:
            raise self._error(
                f"tensor {name!r}: rows of {row} elements are no multiple of "
                f"{ggml_type.name}'s block of {ggml_type.block_size}"
            )
        offset = self._u64(f"offset of {name!r}")
        if offset % alignment:
            raise self._error(f"tensor {name!r} is not aligned to {alignment} bytes")
        nbytes = math.prod(dimensions) // ggml_type.block_size * ggml_type.block_bytes
        return GGUFTensor(name, tuple(reversed(dimensions)), ggml_type, offset, nbytes)

    def _check_count(self, count: int, min_bytes: int, what: str) -> None:
        left = self._size - self._position
        if count * min_bytes > left:
            raise self._error(f"claims {count} {what}, for which {left} bytes are too few")

    def _take(self, count: int, what: str) -> bytes:
        end = self._position + count
        if end > self._size:
            raise self._truncated(what)
        taken = self._buffer[self._position : end]
        self._position = end
        return taken

    def _string(self, what: str) -> str:
        data = self._take(self._u64(f"length of {what}"), what)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self._error(f"{what} is not UTF-8") from error

    def _u32(self, what: str) -> int:
        return int.from_bytes(self._take(4, what), "little")

    def _u64(self, what: str) -> int:
        return int.from_bytes(self._take(8, what), "little")

    def _truncated(self, what: str) -> GGUFError:
        return self._error(
            f"truncated: {what} lies beyond the end at byte {self._size}; download it again"
        )

    def _error(self, message: str) -> GGUFError:
        return GGUFError(f"{self._path}: {message}")
