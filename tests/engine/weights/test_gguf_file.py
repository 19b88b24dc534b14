import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagelet.engine.weights.gguf_file import GGMLType, GGUFError, GGUFFile


def write_small_file(path: Path, alignment: int | None = None) -> None:
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    writer.add_uint8("a.u8", 200)
    writer.add_int64("a.i64", -(2**40))
    writer.add_float32("a.f32", 0.1)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_string("a.string", "naïve 你好\x00")
    writer.add_array("a.strings", ["", "x", "🙂"])
    writer.add_array("a.numbers", [1, -2, 3])
    writer.add_array("a.bools", [True, False])
    writer.add_array("a.nested", [[1, 2], [3]])
    writer.add_tensor("f32", rng.standard_normal((3, 5)).astype(np.float32))
    writer.add_tensor("f16", rng.standard_normal((2, 3, 4)).astype(np.float16))
    packed = gguf.quants.quantize(
        rng.standard_normal((4, 64)).astype(np.float32), gguf.GGMLQuantizationType.Q8_0
    )
    writer.add_tensor("q8", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    write_small_file(path)
    return path


def assert_same_as_gguf_package(path: Path) -> None:
    ours, theirs = GGUFFile(path), gguf.GGUFReader(path)
    fields = {k: v for k, v in theirs.fields.items() if not k.startswith("GGUF.")}
    assert ours.metadata.keys() == fields.keys()
    for key, field in fields.items():
        if key == "a.nested":
            continue  # that reader flattens nested arrays
        expected, found = field.contents(), ours.metadata[key]
        assert (found.tolist() if isinstance(found, np.ndarray) else found) == expected, key
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.shape == tuple(int(size) for size in reversed(tensor.shape))
        assert mine.ggml_type == int(tensor.tensor_type)
        assert mine.offset == tensor.data_offset
        assert ours.data(tensor.name).tobytes() == tensor.data.tobytes()


def test_small_file_equals_the_gguf_packages_reading(small_file: Path) -> None:
    assert_same_as_gguf_package(small_file)
    nested = GGUFFile(small_file).metadata["a.nested"]
    assert [part.tolist() for part in nested] == [[1, 2], [3]]


def test_real_file_equals_the_gguf_packages_reading(smollm2: Path) -> None:
    assert_same_as_gguf_package(smollm2)


def test_custom_alignment(tmp_path: Path) -> None:
    path = tmp_path / "aligned.gguf"
    write_small_file(path, alignment=4096)
    file = GGUFFile(path)
    assert all(tensor.offset % 4096 == 0 for tensor in file.tensors.values())
    assert_same_as_gguf_package(path)


def test_types_have_the_sizes_of_the_gguf_package() -> None:
    for ggml_type in GGMLType:
        theirs = gguf.GGMLQuantizationType(int(ggml_type))
        assert theirs.name == ggml_type.name
        assert gguf.GGML_QUANT_SIZES[theirs] == (ggml_type.block_size, ggml_type.block_bytes)


def test_data_is_not_copied(small_file: Path) -> None:
    file = GGUFFile(small_file)
    assert np.shares_memory(file.data("f32"), file.data("f32"))
    assert not file.data("f32").flags.owndata


def string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def header(num_tensors: int, num_metadata: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_metadata)


def tensor_info(name: str, dims: list[int], kind: int, offset: int) -> bytes:
    shape = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return string(name) + shape + struct.pack("<IQ", kind, offset)


PAD = bytes(256)
BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "magic": (b"\x80\x02}q\x00 not gguf at all", "not a GGUF file"),
    "short": (b"GGUF\x03\x00", "truncated"),
    "version 1": (header(0, 0, version=1), "version 1 is not supported"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "metadata count": (header(0, 2**60) + PAD, "claims 1152921504606846976 metadata entries"),
    "tensor count": (header(2**60, 0) + PAD, "claims 1152921504606846976 tensors"),
    "string length": (header(0, 1) + struct.pack("<Q", 2**62) + PAD, "truncated: metadata key"),
    "value type": (header(0, 1) + string("key") + struct.pack("<I", 77), "'key' has the unknown"),
    "array length": (
        header(0, 1) + string("key") + struct.pack("<IIQ", 9, 6, 2**61) + PAD,
        "elements of 'key'",
    ),
    "array of strings": (
        header(0, 1) + string("key") + struct.pack("<IIQ", 9, 8, 2) + string("a") + b"\xff" * 8,
        "a string of 'key'",
    ),
    "deep nesting": (
        header(0, 1) + string("key") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 20,
        "nests arrays deeper",
    ),
    "not utf-8": (header(0, 1) + struct.pack("<Q", 2) + b"\xff\xff" + PAD, "not UTF-8"),
    "repeated key": (
        header(0, 2) + (string("key") + struct.pack("<IB", 0, 1)) * 2,
        "'key' appears twice",
    ),
    "alignment": (
        header(0, 1) + string("general.alignment") + struct.pack("<II", 4, 12),
        "not a power of two",
    ),
    "tensor type": (header(1, 0) + tensor_info("t", [4], 999, 0) + PAD, "unknown type 999"),
    "dimensions": (header(1, 0) + tensor_info("t", [1] * 5, 0, 0) + PAD, "5 dimensions"),
    "empty dimension": (header(1, 0) + tensor_info("t", [0], 0, 0) + PAD, "empty dimension"),
    "huge shape": (header(1, 0) + tensor_info("t", [2**63, 2**63], 0, 0) + PAD, "truncated"),
    "offset": (header(1, 0) + tensor_info("t", [4], 0, 2**40) + PAD, "truncated: tensor 't'"),
    "misaligned": (header(1, 0) + tensor_info("t", [4], 0, 8) + PAD, "not aligned"),
    "block": (header(1, 0) + tensor_info("t", [33], 8, 0) + PAD, "Q8_0's block of 32"),
    "repeated tensor": (
        header(2, 0) + tensor_info("t", [4], 0, 0) * 2 + PAD,
        "'t' appears twice",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_file_is_named_with_what_is_wrong(tmp_path: Path, fault: str) -> None:
    content, message = BROKEN[fault]
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(GGUFError, match=r"broken\.gguf: ") as error:
        GGUFFile(path)
    assert message in str(error.value)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match="No such file"):
        GGUFFile(tmp_path / "absent.gguf")
    with pytest.raises(GGUFError, match="cannot be read"):
        GGUFFile(tmp_path)


def test_every_truncation_is_refused(small_file: Path, tmp_path: Path) -> None:
    content = small_file.read_bytes()
    file = GGUFFile(small_file)
    end = max(tensor.offset + tensor.nbytes for tensor in file.tensors.values())
    path = tmp_path / "cut.gguf"
    for length in range(0, end, 7):
        path.write_bytes(content[:length])
        with pytest.raises(GGUFError):
            GGUFFile(path)


@st.composite
def mutations(draw: st.DrawFn) -> list[tuple[int, bytes]]:
    """Overwrites (position, bytes), small values and extreme ones."""
    values = st.one_of(
        st.binary(min_size=1, max_size=8),
        st.sampled_from([b"\xff" * 4, b"\xff" * 8, b"\x00" * 8, b"\x00" * 7 + b"\x80"]),
    )
    return draw(st.lists(st.tuples(st.integers(0, 1400), values), min_size=1, max_size=4))


@settings(
    max_examples=500,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(changes=mutations())
def test_mutated_files_are_read_or_refused_never_worse(
    small_file: Path, tmp_path: Path, changes: list[tuple[int, bytes]]
) -> None:
    content = bytearray(small_file.read_bytes())
    for position, data in changes:
        content[position : position + len(data)] = data
    path = tmp_path / "mutated.gguf"
    path.write_bytes(content)
    try:
        file = GGUFFile(path)
    except GGUFError as error:
        refusal = str(error)
    else:
        assert all(len(file.data(name)) == file.tensors[name].nbytes for name in file.tensors)
        return
    assert str(path) in refusal
