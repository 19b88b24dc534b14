"""The library's operations and their arguments, as in `ops.h`."""

import ctypes
from enum import IntEnum

import torch

I64, I32, F32, PTR = ctypes.c_int64, ctypes.c_int32, ctypes.c_float, ctypes.c_void_p

DTYPES = {torch.float32: 0, torch.bfloat16: 1}


class OpKind(IntEnum):
    LINEAR = 0
    RMS_NORM = 1
    GATED_ACTIVATION = 2
    EMBEDDING = 3
    ROTARY = 4
    KV_WRITE = 5
    PAGED_ATTENTION = 6
    SAMPLE = 7
    TOP_LOGPROBS = 8
    TOKEN_MASK = 9
    LORA = 10
    MOE = 11
    DECODE_INPUTS = 12
    KEEP_TOKENS = 13


class LinearArgs(ctypes.Structure):
    _fields_ = (
        ("rows", I64),
        ("x", PTR),
        ("weight", PTR),
        ("bias", PTR),
        ("y", PTR),
        ("x_stride", I64),
        ("y_stride", I64),
        ("x_dtype", I32),
        ("y_dtype", I32),
        ("n", I32),
        ("k", I32),
        ("format", I32),
        ("accumulate", I32),
    )


class RmsNormArgs(ctypes.Structure):
    _fields_ = (
        ("rows", I64),
        ("x", PTR),
        ("residual", PTR),
        ("weight", PTR),
        ("out", PTR),
        ("x_stride", I64),
        ("residual_stride", I64),
        ("out_stride", I64),
        ("dtype", I32),
        ("groups", I32),
        ("size", I32),
        ("eps", F32),
        ("weight_offset", F32),
    )


class GatedActivationArgs(ctypes.Structure):
    _fields_ = (
        ("rows", I64),
        ("x", PTR),
        ("out", PTR),
        ("x_stride", I64),
        ("out_stride", I64),
        ("dtype", I32),
        ("size", I32),
        ("gelu_tanh", I32),
    )


class EmbeddingArgs(ctypes.Structure):
    _fields_ = (
        ("rows", I64),
        ("ids", PTR),
        ("table", PTR),
        ("out", PTR),
        ("table_rows", I64),
        ("first_id", I64),
        ("out_stride", I64),
        ("dtype", I32),
        ("size", I32),
        ("scale", F32),
    )


class RotaryArgs(ctypes.Structure):
    _fields_ = (
        ("rows", I64),
        ("x", PTR),
        ("positions", PTR),
        ("cos_sin", PTR),
        ("k_cache", PTR),
        ("v_cache", PTR),
        ("slots", PTR),
        ("x_stride", I64),
        ("dtype", I32),
        ("cache_dtype", I32),
        ("num_heads", I32),
        ("num_kv_heads", I32),
        ("head_dim", I32),
        ("block_size", I32),
    )


class KvWriteArgs(ctypes.Structure):
    _fields_ = (
        ("rows", I64),
        ("key", PTR),
        ("value", PTR),
        ("k_cache", PTR),
        ("v_cache", PTR),
        ("slots", PTR),
        ("key_stride", I64),
        ("value_stride", I64),
        ("dtype", I32),
        ("cache_dtype", I32),
        ("num_kv_heads", I32),
        ("head_dim", I32),
        ("block_size", I32),
    )


class PagedAttentionArgs(ctypes.Structure):
    _fields_ = (
        ("rows", I64),
        ("query", PTR),
        ("k_cache", PTR),
        ("v_cache", PTR),
        ("query_start_loc", PTR),
        ("seq_lens", PTR),
        ("block_table", PTR),
        ("out", PTR),
        ("query_stride", I64),
        ("out_stride", I64),
        ("block_table_stride", I64),
        ("dtype", I32),
        ("cache_dtype", I32),
        ("num_heads", I32),
        ("num_kv_heads", I32),
        ("head_dim", I32),
        ("block_size", I32),
        ("sliding_window", I32),
        ("scale", F32),
        ("softcap", F32),
    )


class SampleArgs(ctypes.Structure):
    _fields_ = (
        ("rows", I64),
        ("logits", PTR),
        ("temperature", PTR),
        ("uniforms", PTR),
        ("min_p", PTR),
        ("top_k", PTR),
        ("top_p", PTR),
        ("token_ids", PTR),
        ("broken", PTR),
        ("logits_stride", I64),
        ("vocab_size", I64),
    )


class TopLogprobsArgs(ctypes.Structure):
    _fields_ = (
        ("rows", I64),
        ("logits", PTR),
        ("chosen", PTR),
        ("ids", PTR),
        ("logprobs", PTR),
        ("ranks", PTR),
        ("logits_stride", I64),
        ("vocab_size", I64),
        ("num_top", I64),
    )


class TokenMaskArgs(ctypes.Structure):
    _fields_ = (
        ("rows", I64),
        ("logits", PTR),
        ("row_index", PTR),
        ("words", PTR),
        ("logits_stride", I64),
        ("vocab_size", I64),
        ("num_words", I64),
    )


class LoraArgs(ctypes.Structure):
    _fields_ = (
        ("rows", I64),
        ("x", PTR),
        ("y", PTR),
        ("matrices", PTR),
        ("part_sizes", PTR),
        ("num_blocks", PTR),
        ("blocks", PTR),
        ("row_ids", PTR),
        ("x_stride", I64),
        ("y_stride", I64),
        ("dtype", I32),
        ("k", I32),
        ("num_parts", I32),
    )


class MoeArgs(ctypes.Structure):
    _fields_ = (
        ("rows", I64),
        ("x", PTR),
        ("router_logits", PTR),
        ("matrices", PTR),
        ("out", PTR),
        ("x_stride", I64),
        ("logits_stride", I64),
        ("out_stride", I64),
        ("dtype", I32),
        ("hidden", I32),
        ("intermediate", I32),
        ("num_experts", I32),
        ("first_expert", I32),
        ("num_local", I32),
        ("top_k", I32),
        ("renormalize", I32),
    )


class DecodeInputsArgs(ctypes.Structure):
    _fields_ = (
        ("rows", I64),
        ("row_index", PTR),
        ("positions", PTR),
        ("token_ids", PTR),
        ("input_ids", PTR),
        ("query_start_loc", PTR),
        ("seq_lens", PTR),
        ("groups", PTR),
        ("token_ids_stride", I64),
        ("num_groups", I64),
        ("block_size", I64),
    )


class KeepTokensArgs(ctypes.Structure):
    _fields_ = (
        ("rows", I64),
        ("row_index", PTR),
        ("positions", PTR),
        ("drawn", PTR),
        ("token_ids", PTR),
        ("token_ids_stride", I64),
    )
