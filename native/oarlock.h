/* The C ABI of Oarlock's core. Plain pointers and sizes: no torch, no Python, no C++ types.
 *
 * Every function that can fail returns an oarlock_status. All buffers belong to the caller, are dense and row-major,
 * and are checked for size and type on the Python side (src/oarlock/_native). Legend: B batch, Hm mask heads, Sq
 * query rows, Sk key columns, Tq/Tk row tiles and key blocks. */
#ifndef OARLOCK_H
#define OARLOCK_H

#include <stdint.h>

#if defined(OARLOCK_BUILD)
#define OARLOCK_API __attribute__((visibility("default")))
#else
#define OARLOCK_API
#endif

/* Raised with every change of this header; the Python side refuses another number. */
#define OARLOCK_ABI 7

#ifdef __cplusplus
extern "C" {
#endif

typedef enum oarlock_status {
    OARLOCK_OK = 0,
    OARLOCK_INVALID_ARGUMENT = 1,
    OARLOCK_OUT_OF_MEMORY = 2,
} oarlock_status;

OARLOCK_API int32_t oarlock_abi(void);
OARLOCK_API const char* oarlock_version(void);

/* Instruction set of the kernels: "baseline", "avx2" or "avx512". The environment variable OARLOCK_ISA, read once, names
 * another; null if that is unknown or the CPU lacks it. */
OARLOCK_API const char* oarlock_isa(void);

/* Freed memory stays with the process, for all later allocations (glibc only). 1 if that worked, else 0. */
OARLOCK_API int32_t oarlock_keep_freed_memory(void);

/* ---- attention: column masks ---------------------------------------------------------------------------------------
 * bounds is int32 [num_masks, seqlen_k, num_bounds]; the masked rows of a column with bounds r0..r3 are
 *   causal, 1 bound : i >= r0               causal, 2 bounds    : r0 <= i < r1
 *   else,  2 bounds : i >= r0 or i < r1     else,   4 bounds    : r0 <= i < r1 or r2 <= i < r3
 * and, when causal, also i < j - (seqlen_k - seqlen_q). Empty, reversed and out-of-range intervals are allowed. */
typedef struct oarlock_column_mask {
    const int32_t* bounds;
    int64_t num_masks;
    int64_t seqlen_q;
    int64_t seqlen_k;
    int32_t num_bounds;
    int32_t causal;
} oarlock_column_mask;

/* counts[m, i] = number of keys that row i sees; int64 [num_masks, seqlen_q]. */
OARLOCK_API oarlock_status oarlock_mask_visible_per_row(const oarlock_column_mask* mask, int64_t* counts,
                                                        int32_t num_threads);

/* counts[m, tq, tk] = visible (row, key) pairs of a tile; int64 [num_masks, ceil(Sq/block_q), ceil(Sk/block_k)]. */
OARLOCK_API oarlock_status oarlock_mask_visible_per_tile(const oarlock_column_mask* mask, int64_t block_q,
                                                         int64_t block_k, int64_t* counts, int32_t num_threads);

/* counts[j] = number of the rows [row_begin, row_end) that see key key_begin + j of mask `index`;
 * int64 [key_end - key_begin]. */
OARLOCK_API oarlock_status oarlock_mask_visible_per_key(const oarlock_column_mask* mask, int64_t index,
                                                        int64_t row_begin, int64_t row_end, int64_t key_begin,
                                                        int64_t key_end, int64_t* counts);

/* Row i of mask m sees no key outside [first[m, i], last[m, i]); both are 0 for a row without keys.
 * int64 [num_masks, seqlen_q] each. */
OARLOCK_API oarlock_status oarlock_mask_row_spans(const oarlock_column_mask* mask, int64_t* first, int64_t* last,
                                                  int32_t num_threads);

/* bias[i, j] = 0 where row row_begin + i sees key key_begin + j of mask `index`, -infinity elsewhere; float
 * [row_end - row_begin, key_end - key_begin]. */
OARLOCK_API oarlock_status oarlock_mask_bias(const oarlock_column_mask* mask, int64_t index, int64_t row_begin,
                                             int64_t row_end, int64_t key_begin, int64_t key_end, float* bias);

/* ---- attention: fused kernels ----------------------------------------------------------------------------------------
 * out = softmax(scale * Q K^T + mask) V, computed in float; a row without keys has out 0 and lse -infinity. Query head h
 * uses key head h / (num_heads_q / num_heads_k) and mask head h / (num_heads_q / mask_heads). A NaN or infinity reaches
 * only rows and keys that see each other. Results are equal bit by bit for equal num_threads. Those of the forward do not
 * depend on it, nor does dQ; dK and dV do not if `deterministic` is not 0. */
enum { OARLOCK_FLOAT32 = 0, OARLOCK_BFLOAT16 = 1, OARLOCK_FLOAT16 = 2 };

/* A tensor [batch, tokens, heads, dim]; strides count elements. */
typedef struct oarlock_vectors {
    void* data;
    int64_t batch_stride;
    int64_t token_stride;
    int64_t head_stride;
    int64_t dim_stride;
} oarlock_vectors;

/* Dropout: the probability of (row, key) is multiplied by dropout_scale where the 32-bit hash of (seed, offset, batch,
 * head, row, key) that src/oarlock/attention/dropout.py defines is at least dropout_threshold, else by 0. */
typedef struct oarlock_attention {
    oarlock_column_mask mask; /* num_masks = mask_batch * mask_heads */
    int64_t mask_batch;       /* 1 or batch */
    int64_t mask_heads;
    const uint8_t* block_mask; /* [block_mask_batch, mask_heads, ceil(Sq/128), ceil(Sk/128)], 0 hides a block; may be null */
    int64_t block_mask_batch;  /* 1 or batch */
    int64_t batch;
    int64_t seqlen_q;
    int64_t seqlen_k;
    int64_t num_heads_q;
    int64_t num_heads_k;
    int64_t head_dim;  /* of query and key */
    int64_t value_dim; /* of value and out */
    uint64_t seed;
    uint64_t offset;
    uint32_t dropout_threshold; /* 0: no dropout */
    float dropout_scale;
    float scale;
    int32_t dtype; /* of all tensors */
    int32_t num_threads;
    int32_t deterministic;
} oarlock_attention;

/* lse: [batch, num_heads_q, seqlen_q]. out has dim_stride 1. */
OARLOCK_API oarlock_status oarlock_attention_forward(const oarlock_attention* call, const oarlock_vectors* query,
                                                     const oarlock_vectors* key, const oarlock_vectors* value,
                                                     const oarlock_vectors* out, float* lse);

/* grad_lse like lse, may be null. The gradients written have dim_stride 1; nothing is written if there are no rows. */
OARLOCK_API oarlock_status oarlock_attention_backward(
    const oarlock_attention* call, const oarlock_vectors* query, const oarlock_vectors* key,
    const oarlock_vectors* value, const oarlock_vectors* out, const float* lse, const oarlock_vectors* grad_out,
    const float* grad_lse, const oarlock_vectors* grad_query, const oarlock_vectors* grad_key,
    const oarlock_vectors* grad_value);

/* ---- ops: float kernels of a decoder layer -------------------------------------------------------------------------
 * A NaN or infinity of a row reaches that row's results. Results do not depend on num_threads. */

/* y = weight * t / rms(t), t = x + update, rms = sqrt(mean(t^2) + eps). x, update, total, y: [num_rows, width]; weight
 * [width]; inverse_rms [num_rows]. update and total are both null to normalise x itself. */
OARLOCK_API oarlock_status oarlock_rms_norm(const float* x, const float* update, const float* weight, float eps,
                                            float* total, float* y, float* inverse_rms, int64_t num_rows,
                                            int64_t width, int32_t num_threads);

/* dx = gradient of x through y, plus dtotal where that is not null; x is what was normalised. */
OARLOCK_API oarlock_status oarlock_rms_norm_backward(const float* dy, const float* dtotal, const float* x,
                                                     const float* weight, const float* inverse_rms, float* dx,
                                                     float* dweight, int64_t num_rows, int64_t width,
                                                     int32_t num_threads);

/* y = gate / (1 + exp(-gate)) * up. Row r of an operand starts at data + r * stride and has `width` floats. */
OARLOCK_API oarlock_status oarlock_swiglu(const float* gate, int64_t gate_stride, const float* up, int64_t up_stride,
                                          float* y, int64_t y_stride, int64_t num_rows, int64_t width,
                                          int32_t num_threads);

OARLOCK_API oarlock_status oarlock_swiglu_backward(const float* dy, int64_t dy_stride, const float* gate,
                                                   int64_t gate_stride, const float* up, int64_t up_stride,
                                                   float* dgate, int64_t dgate_stride, float* dup, int64_t dup_stride,
                                                   int64_t num_rows, int64_t width, int32_t num_threads);

/* losses[r] = logsumexp(z) - z[targets[r]] of row z of logits [num_rows, vocabulary]; 0 where the target is ignore_index.
 * with_gradient: softmax(z) - onehot(target), times scale and row_scales[r] (where not null), replaces the row. */
OARLOCK_API oarlock_status oarlock_softmax_cross_entropy(float* logits, const int64_t* targets, int64_t ignore_index,
                                                         float scale, const float* row_scales, int32_t with_gradient,
                                                         float* losses, int64_t num_rows, int64_t vocabulary,
                                                         int32_t num_threads);

/* The vector of a token's head starts at data + token * token_stride + head * head_stride and is dense. */
typedef struct oarlock_heads {
    float* data;
    int64_t token_stride;
    int64_t head_stride;
} oarlock_heads;

/* Token t is rotated by row t % num_angles of cos and sin, each [num_angles, head_dim / 2]. */
typedef struct oarlock_rotation {
    const float* cos;
    const float* sin;
    int64_t num_angles;
    int64_t num_tokens;
    int64_t num_heads;
    int64_t head_dim;
} oarlock_rotation;

/* y = (a cos - b sin, b cos + a sin) for the pairs (a, b) = (x[i], x[i + head_dim / 2]), or (x[2i], x[2i + 1]) where
 * interleaved. inverse: by the negative angle. */
OARLOCK_API oarlock_status oarlock_rope(const oarlock_rotation* rotation, const oarlock_heads* x,
                                        const oarlock_heads* y, int32_t inverse, int32_t interleaved,
                                        int32_t num_threads);

/* RMS-norm of each head's vector, then its rotation (not interleaved); weight [head_dim], inverse_rms [num_tokens,
 * num_heads]. */
OARLOCK_API oarlock_status oarlock_norm_rope(const oarlock_rotation* rotation, const oarlock_heads* x,
                                             const float* weight, float eps, float* inverse_rms,
                                             const oarlock_heads* y, int32_t num_threads);

OARLOCK_API oarlock_status oarlock_norm_rope_backward(const oarlock_rotation* rotation, const oarlock_heads* dy,
                                                      const oarlock_heads* x, const float* weight,
                                                      const float* inverse_rms, const oarlock_heads* dx,
                                                      float* dweight, int32_t num_threads);

/* ---- content hashes ------------------------------------------------------------------------------------------------
 * sums[c] = the chunk sum of digest64 over bytes [c, c + 1) * 32768; the last chunk may be short. weights: the 4096
 * weights of the definition in oarlock/digest.py; sums: ceil(num_bytes / 32768). */
OARLOCK_API oarlock_status oarlock_digest_chunk_sums(const void* data, int64_t num_bytes, const uint64_t* weights,
                                                     uint64_t* sums, int32_t num_threads);

#ifdef __cplusplus
}
#endif

#endif /* OARLOCK_H */
