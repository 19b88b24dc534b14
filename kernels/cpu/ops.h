// What a recorded step consists of: operations with fixed arguments and a number of rows that each
// replay gives. The structs are filled by Python (ctypes), field by field in this order.
#pragma once

#include <cstdint>

#include "threads.h"

namespace pagelet {

enum DType : int32_t { kFloat32 = 0, kBFloat16 = 1, kInt8 = 2 };

// The numbers that differ from one replay to the next.
struct Step {
  static constexpr int kSizes = 4;
  int64_t sizes[kSizes];
};

enum OpKind : int32_t {
  kLinear,
  kRmsNorm,
  kGatedActivation,
  kEmbedding,
  kRotary,
  kKvWrite,
  kPagedAttention,
  kSample,
  kTopLogprobs,
  kTokenMask,
  kLora,
  kMoe,
  kDecodeInputs,
  kKeepTokens,
  kNumOps
};

// All arguments begin with `rows`: which of the step's sizes is the number of rows. Strides and
// sizes are in elements.

// y = x @ weight.T + bias, or y += that. weight: the panels of PackedLinear.
struct LinearArgs {
  int64_t rows;
  const void* x;  // [rows, k]
  const void* weight;
  const float* bias;  // [n] or null
  void* y;            // [rows, n]
  int64_t x_stride, y_stride;
  int32_t x_dtype, y_dtype;
  int32_t n, k;
  int32_t format;
  int32_t accumulate;
};

// out = norm(x) * weight, or with a residual: residual += x, out = norm(residual) * weight.
struct RmsNormArgs {
  int64_t rows;
  const void* x;         // [rows, groups, size]
  void* residual;        // [rows, size] or null
  const float* weight;   // [size]
  void* out;             // [rows, groups, size]; may be x
  int64_t x_stride, residual_stride, out_stride;
  int32_t dtype;
  int32_t groups, size;  // a row is `groups` vectors that are normalised each on its own
  float eps;
  float weight_offset;  // 1 for Gemma, whose weights are stored less one
};

// out = act(x[:, :size]) * x[:, size:].
struct GatedActivationArgs {
  int64_t rows;
  const void* x;  // [rows, 2 * size]
  void* out;      // [rows, size]
  int64_t x_stride, out_stride;
  int32_t dtype;
  int32_t size;
  int32_t gelu_tanh;  // else silu
};

// out = table[ids] * scale; zeros for ids outside of [first_id, first_id + table_rows).
struct EmbeddingArgs {
  int64_t rows;
  const int64_t* ids;  // [rows]
  const void* table;   // [table_rows, size]
  void* out;           // [rows, size]
  int64_t table_rows, first_id, out_stride;
  int32_t dtype;
  int32_t size;
  float scale;
};

// Turns queries and keys by their positions' angles, and puts keys and values into the KV cache.
// x holds each row's query heads, key heads and value heads; queries are turned in place.
struct RotaryArgs {
  int64_t rows;
  void* x;                  // [rows, num_heads + 2 * num_kv_heads, head_dim]
  const int64_t* positions;  // [rows]
  const float* cos_sin;      // [max_positions, 2, head_dim / 2]
  void* k_cache;  // [num_blocks, num_kv_heads, page], laid out as cpu_pages.h says
  void* v_cache;
  const int64_t* slots;  // [rows]
  int64_t x_stride;
  int32_t dtype, cache_dtype;
  int32_t num_heads, num_kv_heads, head_dim, block_size;
};

// Puts keys and values into the KV cache, whose pages are laid out as cpu_pages.h says.
struct KvWriteArgs {
  int64_t rows;
  const void* key;    // [rows, num_kv_heads, head_dim]
  const void* value;  // [rows, num_kv_heads, head_dim]
  void* k_cache;      // [num_blocks, num_kv_heads, page]
  void* v_cache;
  const int64_t* slots;  // [rows]
  int64_t key_stride, value_stride;
  int32_t dtype, cache_dtype;
  int32_t num_kv_heads, head_dim, block_size;
};

// Attention of every request's new tokens to its context in the KV cache. `rows` counts requests.
struct PagedAttentionArgs {
  int64_t rows;
  const void* query;              // [tokens, num_heads, head_dim]
  const void* k_cache;            // [num_blocks, num_kv_heads, page]
  const void* v_cache;
  const int32_t* query_start_loc;  // [rows + 1]
  const int32_t* seq_lens;         // [rows]
  const int32_t* block_table;      // [rows, max_blocks]
  void* out;                       // [tokens, num_heads, head_dim]
  int64_t query_stride, out_stride, block_table_stride;
  int32_t dtype, cache_dtype;
  int32_t num_heads, num_kv_heads, head_dim, block_size;
  int32_t sliding_window;  // tokens that a query sees, its own included; 0 for all
  float scale;
  float softcap;  // 0 for none
};

// Draws a token of each row's logits, as pagelet.kernels.sample defines it. A null column stands for
// the number that it names.
struct SampleArgs {
  int64_t rows;
  const float* logits;        // [rows, vocab_size]
  const double* temperature;  // [rows]; 0
  const double* uniforms;     // [rows]
  const double* min_p;        // [rows]; 0
  const int64_t* top_k;       // [rows]; 0, for all
  const double* top_p;        // [rows]; 1
  int64_t* token_ids;         // [rows]
  bool* broken;               // [rows]
  int64_t logits_stride, vocab_size;
};

// Logprobs of each row's chosen token and then of the `num_top` most likely ones.
struct TopLogprobsArgs {
  int64_t rows;
  const float* logits;    // [rows, vocab_size]
  const int64_t* chosen;  // [rows]
  int64_t* ids;           // [rows, 1 + num_top]
  float* logprobs;        // [rows, 1 + num_top]
  int64_t* ranks;         // [rows] of the chosen tokens
  int64_t logits_stride, vocab_size, num_top;
};

// Sets the logits of tokens whose bit is not set to minus infinity.
struct TokenMaskArgs {
  int64_t rows;
  float* logits;             // [any number of rows, vocab_size]
  const int64_t* row_index;  // [rows] the row of logits that each mask is for
  const uint32_t* words;     // [rows, num_words]; tokens beyond them are forbidden
  int64_t logits_stride, vocab_size, num_words;
};

// An adapter's matrices of one projection, packed; a rank of 0: it has none.
struct LoraMatrices {
  const void* a;  // panels of a PackedLinear [rank, k]
  const void* b;  // [outputs, rank]
  int64_t rank;
};

// Adds to the outputs of a linear layer's projections, side by side, what the adapters of some rows
// make of their inputs. Those rows lie side by side in `row_ids`, in blocks of one adapter.
struct LoraArgs {
  int64_t rows;
  const void* x;                 // [rows, k]
  void* y;                       // [rows, sum of part_sizes]
  const LoraMatrices* matrices;  // [slots, num_parts]
  const int32_t* part_sizes;     // [num_parts]
  const int32_t* num_blocks;     // [1]
  const int32_t* blocks;         // [num_blocks, 3]: slot, first of row_ids, number of rows
  const int64_t* row_ids;        // [rows that have an adapter]
  int64_t x_stride, y_stride;
  int32_t dtype;  // of x, y and the packed matrices
  int32_t k, num_parts;
};

// A matrix of an expert, packed: the panels and the code of a PackedLinear.
struct ExpertMatrix {
  const void* data;
  int64_t format;
};

// Sum over each token's top_k experts of probability * down(silu(gate(x)) * up(x)).
struct MoeArgs {
  int64_t rows;
  const void* x;                 // [rows, hidden]
  const void* router_logits;     // [rows, num_experts]
  const ExpertMatrix* matrices;  // [num_local, 3]: gate, up, down
  void* out;                     // [rows, hidden]
  int64_t x_stride, logits_stride, out_stride;
  int32_t dtype;  // of x, router_logits and out
  int32_t hidden, intermediate;
  int32_t num_experts;
  int32_t first_expert, num_local;  // those that are held here; others add nothing
  int32_t top_k;
  int32_t renormalize;
};

// The block tables of a KV group.
struct BlockTables {
  const int32_t* of_rows;  // [state rows, stride]
  int32_t* of_step;        // [rows, stride]
  int64_t* slots;          // [rows]
  int64_t stride;
};

// Gathers what a step of one token a request needs from the requests' state rows.
struct DecodeInputsArgs {
  int64_t rows;
  const int64_t* row_index;  // [rows]
  const int64_t* positions;  // [rows]
  const int32_t* token_ids;  // [state rows, token_ids_stride]
  int64_t* input_ids;        // [rows]
  int32_t* query_start_loc;  // [rows + 1], of which the first is 0
  int32_t* seq_lens;         // [rows]
  const BlockTables* groups;  // [num_groups]
  int64_t token_ids_stride, num_groups, block_size;
};

// Puts the tokens that such a step drew behind those that it computed.
struct KeepTokensArgs {
  int64_t rows;
  const int64_t* row_index;  // [rows]
  const int64_t* positions;  // [rows]
  const int64_t* drawn;      // [rows]
  int32_t* token_ids;        // [state rows, token_ids_stride]
  int64_t token_ids_stride;
};

using Op = void (*)(const void* args, const Step& step, ThreadPool& pool);

// The operations compiled for one instruction set.
struct Tier {
  const char* name;
  Op ops[kNumOps];
};

// Memory of the calling thread that lives until its next use; grows, never shrinks.
void* scratch(int64_t bytes);

}  // namespace pagelet
