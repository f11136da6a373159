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
#define OARLOCK_ABI 15

#ifdef __cplusplus
extern "C" {
#endif

typedef enum oarlock_status {
    OARLOCK_OK = 0,
    OARLOCK_INVALID_ARGUMENT = 1,
    OARLOCK_OUT_OF_MEMORY = 2,
    OARLOCK_DRIVER_FAILED = 3,
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

/* What the values of a tensor are, for its largest magnitude. */
enum {
    OARLOCK_CONTENT_OTHER = 0,
    OARLOCK_CONTENT_FLOAT64 = 1,
    OARLOCK_CONTENT_FLOAT32 = 2,
    OARLOCK_CONTENT_BFLOAT16 = 3,
    OARLOCK_CONTENT_FLOAT16 = 4
};

typedef struct {
    uint64_t digest;
    double largest; /* magnitude of the values; 0 of OTHER and of none, infinite or NaN if any value is */
} oarlock_content;

/* digest64 of a short tensor in C order and the largest magnitude in it, on this thread. num_bytes: a multiple of the
 * size of its values. header_sum: of the definition's last sum, the terms of the header. */
OARLOCK_API oarlock_status oarlock_digest_content(const void* data, int64_t num_bytes, int32_t values,
                                                  uint64_t header_sum, const uint64_t* weights,
                                                  oarlock_content* content);

/* ---- memory: a pool that defragments itself ------------------------------------------------------------------------
 * Addresses that were handed out never change. Where no hole is long enough, whole free pages are mapped to one: new
 * pages first, moved ones last, exactly as many as needed. Thread-safe. Why a call failed is said by
 * oarlock_pool_message() on the same thread. In a child process, and after oarlock_pool_close(), calls do nothing and
 * allocations fail. */
typedef struct oarlock_pool oarlock_pool;

typedef enum oarlock_driver {
    OARLOCK_DRIVER_SIM = 0,    /* arithmetic only: addresses without memory */
    OARLOCK_DRIVER_HOST = 1,   /* anonymous memory, moved by mremap (Linux) */
    OARLOCK_DRIVER_MEMFD = 2,  /* pages of a memory file, mapped shared (Linux) */
    OARLOCK_DRIVER_CUDA = 3,   /* pages of a CUDA device (driver API, found by dlopen) */
} oarlock_driver;

typedef struct oarlock_pool_config {
    uint64_t capacity;       /* bytes, at most, from the device; whole pages count */
    uint64_t soft_capacity;  /* up to here pages are created rather than moved */
    uint64_t page_bytes;     /* a power of two */
    uint64_t reserve_factor; /* addresses reserved at once, in capacities */
    int32_t driver;          /* oarlock_driver */
    int32_t device;
} oarlock_pool_config;

typedef struct oarlock_pool_stats {
    int64_t capacity_bytes;
    int64_t page_bytes;
    int64_t reserved_bytes; /* pages that the device has given */
    int64_t peak_reserved_bytes;
    int64_t spare_bytes; /* of those, mapped nowhere */
    int64_t live_bytes;  /* allocations, rounded up to 512 */
    int64_t peak_live_bytes;
    int64_t requested_bytes; /* the same, not rounded */
    int64_t free_bytes;      /* mapped, nobody's */
    int64_t stranded_bytes;  /* of those, in pages that something else lies on too */
    int64_t blocked_bytes;   /* of those, waiting for events */
    int64_t pinned_bytes;
    int64_t held_bytes; /* of those, freed already */
    int64_t asleep_bytes;
    int64_t lost_bytes; /* pages that the driver would neither give nor take */
    int64_t num_live;
    int64_t num_free;
    int64_t num_holes;
    int64_t num_allocations;
    int64_t num_frees;
    int64_t num_moves;   /* requests that moved pages */
    int64_t moved_pages; /* that they moved */
    int64_t num_rollbacks;
    int64_t num_not_created; /* pages that the device refused */
    int64_t num_pressure_calls;
    int64_t num_waits;
    int64_t num_out_of_memory;
    int64_t num_ordered; /* requests whose stream was made to wait for other streams instead of moving pages */
} oarlock_pool_stats;

typedef struct oarlock_pool_block {
    uint64_t addr;
    uint64_t size;
    uint64_t requested;
    uint64_t stream;
    uint64_t mapped_pages; /* pages with memory that the block lies on */
    uint32_t stack;        /* of the context that it was allocated in */
    uint32_t name;
    uint32_t tag;
    uint32_t pins;
    int32_t state;   /* 0 live, 1 free, 2 hole, 3 freed but pinned, 4 lost */
    int32_t blocked; /* 1 while events of streams are outstanding */
} oarlock_pool_block;

typedef enum oarlock_pool_action {
    OARLOCK_ALLOC = 0,
    OARLOCK_FREE_REQUESTED = 1, /* streams or pins keep it for now */
    OARLOCK_FREE_COMPLETED = 2, /* anybody may have it; without a request before it, both at once */
    OARLOCK_MAP = 3,
    OARLOCK_UNMAP = 4,
    OARLOCK_OOM = 5,
    OARLOCK_ANNOTATION = 6,
} oarlock_pool_action;

/* 40 bytes. Sizes of blocks are rounded up to 512. */
typedef struct oarlock_pool_event {
    int64_t t_ns; /* of a monotonic clock, read for every 16th event and for all but OARLOCK_ALLOC and the frees; the
                     others have the last reading */
    uint64_t addr;
    uint64_t size;
    uint32_t stack;
    uint32_t name;
    uint32_t tag;
    uint16_t stream; /* number of the stream, in the order in which the pool met them */
    uint8_t action;
    uint8_t detail; /* of OARLOCK_MAP and OARLOCK_UNMAP: 1 for pages that move; of OARLOCK_ANNOTATION: the caller's */
} oarlock_pool_event;

/* Called without the pool's lock where a request of `size` bytes cannot be met; frees what it can and returns more than
 * 0 if the request is worth another try. */
typedef int64_t (*oarlock_pressure)(void* user, int64_t size, uint64_t stream);

OARLOCK_API const char* oarlock_pool_message(void);

OARLOCK_API oarlock_status oarlock_pool_open(const oarlock_pool_config* config, oarlock_pool** pool);

/* Gives everything back. The handle stays valid, for the frees that come too late. */
OARLOCK_API oarlock_status oarlock_pool_close(oarlock_pool* pool);

/* 512-byte aligned; 0 bytes are address 0. Pages of different tags are kept apart. */
OARLOCK_API oarlock_status oarlock_pool_malloc(oarlock_pool* pool, uint64_t size, uint64_t stream, uint32_t tag,
                                               uint64_t* addr);

/* `stream` may still be using it, and the one that it was allocated on. */
OARLOCK_API oarlock_status oarlock_pool_free(oarlock_pool* pool, uint64_t addr, uint64_t stream);

/* `stream` uses it too: once freed, it waits for the work that the stream has been given until then. */
OARLOCK_API oarlock_status oarlock_pool_record_stream(oarlock_pool* pool, uint64_t addr, uint64_t stream);

/* Until it is unpinned as often, the allocation's memory is neither reused (after a free) nor taken (by sleep). */
OARLOCK_API oarlock_status oarlock_pool_pin(oarlock_pool* pool, uint64_t addr, const char* reason);
OARLOCK_API oarlock_status oarlock_pool_unpin(oarlock_pool* pool, uint64_t addr);

/* The tag's pages go back to the device, addresses stay; keep: the contents come back too. */
OARLOCK_API oarlock_status oarlock_pool_sleep(oarlock_pool* pool, uint32_t tag, int32_t keep);
OARLOCK_API oarlock_status oarlock_pool_wake(oarlock_pool* pool, uint32_t tag);

/* Gives back the pages that nothing lies on. */
OARLOCK_API oarlock_status oarlock_pool_trim(oarlock_pool* pool);

/* Another device may use the pool's memory, also what is mapped or moved later. */
OARLOCK_API oarlock_status oarlock_pool_allow_peer(oarlock_pool* pool, int32_t device);

OARLOCK_API oarlock_status oarlock_pool_set_pressure(oarlock_pool* pool, oarlock_pressure callback, void* user);

/* The allocation, of host memory, as a DLManagedTensor of bytes whose deleter frees it. */
OARLOCK_API oarlock_status oarlock_pool_dlpack(oarlock_pool* pool, uint64_t addr, uint64_t num_bytes, void** managed);

/* The largest request that would be met now, without the pressure callback and without waiting. */
OARLOCK_API oarlock_status oarlock_pool_largest(oarlock_pool* pool, uint64_t stream, uint32_t tag, uint64_t* size);

/* Whether requests of these sizes, in this order, would all be met now, without the pressure callback and without
   waiting. It is tried on a copy of the pool's books: the pool and the device stay as they are. */
OARLOCK_API oarlock_status oarlock_pool_fits(oarlock_pool* pool, const uint64_t* sizes, int64_t count, uint64_t stream,
                                             uint32_t tag, int32_t* fits);

OARLOCK_API oarlock_status oarlock_pool_get_stats(oarlock_pool* pool, oarlock_pool_stats* stats);

/* The blocks in address order, at most `max` of them; count is how many there are. */
OARLOCK_API oarlock_status oarlock_pool_walk(oarlock_pool* pool, oarlock_pool_block* blocks, int64_t max,
                                             int64_t* count);

/* Keeps the last events, at least `num_events` of them; 0: no more. */
OARLOCK_API oarlock_status oarlock_pool_record(oarlock_pool* pool, uint64_t num_events);

/* What the next allocations and annotations of this thread are noted with: numbers of the caller's. */
OARLOCK_API void oarlock_pool_context(uint32_t stack, uint32_t name);

/* Notes a moment, or (with an address) a name for an allocation; `detail` is the caller's. */
OARLOCK_API oarlock_status oarlock_pool_annotate(oarlock_pool* pool, uint64_t addr, uint8_t detail);

/* Of one moment: the events from number `first` on that are still kept, and the blocks, at most as many as there is room
 * for. `begin` is the number of the first event, the counts are how many there are. */
OARLOCK_API oarlock_status oarlock_pool_snapshot(oarlock_pool* pool, uint64_t first, oarlock_pool_event* events,
                                                 int64_t max_events, uint64_t* begin, int64_t* num_events,
                                                 oarlock_pool_block* blocks, int64_t max_blocks, int64_t* num_blocks);

/* Handles of the streams, by number. */
OARLOCK_API oarlock_status oarlock_pool_streams(oarlock_pool* pool, uint64_t* handles, int64_t max, int64_t* count);

/* Whether blocks, indexes, page tables and the driver agree. */
OARLOCK_API oarlock_status oarlock_pool_check(oarlock_pool* pool);

/* For tests. Of the driver's calls from now on, `count` fail, from number `first` (0 is the next); and how many there
 * have been since. */
OARLOCK_API oarlock_status oarlock_pool_fail_calls(oarlock_pool* pool, uint64_t first, uint64_t count);
OARLOCK_API oarlock_status oarlock_pool_num_calls(oarlock_pool* pool, uint64_t* count);

/* For tests, with OARLOCK_DRIVER_SIM: a held stream completes nothing until it is let go or waited for. */
OARLOCK_API oarlock_status oarlock_pool_sim_hold(oarlock_pool* pool, uint64_t stream, int32_t held);

/* ---- memory: torch's CUDA tensors in a pool --------------------------------------------------------------------------
 * What torch.cuda.memory.CUDAPluggableAllocator takes. The pool serves the device from now on; once for a device. */
OARLOCK_API oarlock_status oarlock_torch_attach(int32_t device, oarlock_pool* pool);

/* Throws a C++ exception, derived from std::bad_alloc, with the pool's message: torch makes a Python one of it. */
OARLOCK_API void* oarlock_torch_malloc(int64_t size, int32_t device, void* stream);
OARLOCK_API void oarlock_torch_free(void* ptr, uint64_t size, int32_t device, void* stream);
OARLOCK_API void oarlock_torch_record_stream(void* ptr, void* stream);

/* ---- memory: replaying a trace of allocations against models of allocators ------------------------------------------
 * Arithmetic only: what each would have taken, mapped and copied. Work is done `lag` events after it was queued. */
typedef enum oarlock_allocator {
    OARLOCK_ALLOCATOR_POOL = 0,       /* the pool itself, on OARLOCK_DRIVER_SIM */
    OARLOCK_ALLOCATOR_CACHING = 1,    /* torch's caching allocator */
    OARLOCK_ALLOCATOR_EXPANDABLE = 2, /* torch's expandable segments */
    OARLOCK_ALLOCATOR_MEMMOVE = 3,    /* Paddle 3.3's compaction, which copies live data */
} oarlock_allocator;

typedef struct oarlock_replay_config {
    uint64_t capacity;
    uint64_t page_bytes; /* of large requests: pool, memmove: pages; caching: segments; expandable: handles */
    uint64_t lag;
    int32_t allocator; /* oarlock_allocator */
} oarlock_replay_config;

typedef struct oarlock_replay_result {
    int64_t failed_at; /* the event that was out of memory, and the last one; -1: none */
    int64_t peak_reserved_bytes;
    int64_t mapped_bytes; /* from the device, or anew from elsewhere */
    int64_t unmapped_bytes;
    int64_t copied_bytes; /* live data */
    int64_t num_device_syncs;
    int64_t num_stream_syncs; /* for one stream or event */
    int64_t num_rounds;       /* requests that new memory alone did not meet */
} oarlock_replay_result;

/* Events by columns: actions 0 allocate, 1 free, 2 also used by the stream; ids count the allocations from 0. */
OARLOCK_API oarlock_status oarlock_replay(const uint8_t* actions, const uint32_t* ids, const int64_t* sizes,
                                          const uint32_t* streams, int64_t count, const oarlock_replay_config* config,
                                          oarlock_replay_result* result);

#ifdef __cplusplus
}
#endif

#endif /* OARLOCK_H */
