// Rows of the caller's tensors (any strides, float32, bfloat16 or float16) to and from the kernels' float layouts.
#pragma once

#include "attention/flash.h"
#include "attention/flash_transpose.h"

namespace oarlock {
namespace {

OARLOCK_INLINE int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

OARLOCK_INLINE int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

OARLOCK_INLINE int64_t round_up(int64_t size, int64_t multiple) {
    return (size + multiple - 1) / multiple * multiple;
}

// Channels as the kernels see them: zero padded to whole vectors of every width, and to whole register tiles.
OARLOCK_INLINE int64_t padded(int64_t head_dim) {
    return round_up(head_dim, 16);
}

// One cache line more than the channels: a power of two would put the rows of a block into few sets of the cache.
int64_t row_stride(int64_t head_dim) {
    return padded(head_dim) + 16;
}

// Cuts arrays out of a workspace; without one, only counts.
struct Carver {
    float* workspace;
    int64_t used;
    float* take(int64_t count) {
        float* const taken = workspace == nullptr ? nullptr : workspace + used;
        used += round_up(count, 16);
        return taken;
    }
};

OARLOCK_INLINE float float_of(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

OARLOCK_INLINE uint32_t bits_of_float(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

// The integer arithmetic below has no branches, so that loops over it become vector code.
OARLOCK_INLINE float float_of_bfloat16(uint16_t half) {
    return float_of(static_cast<uint32_t>(half) << 16);
}

OARLOCK_INLINE uint16_t bfloat16_of(float value) {  // to nearest even; NaN stays NaN
    const uint32_t bits = bits_of_float(value);
    const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    return static_cast<uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? 0x7fc0U : rounded);
}

OARLOCK_INLINE float float_of_float16(uint16_t half) {
    const uint32_t sign = (half & 0x8000U) << 16;
    const uint32_t rest = (half & 0x7fffU) << 13;
    const uint32_t scaled = bits_of_float(float_of(rest) * 0x1p112f);  // makes denormals normal
    const uint32_t magnitude = rest >= 0x0f800000U ? rest | 0x7f800000U : scaled;
    return float_of(sign | magnitude);
}

OARLOCK_INLINE uint16_t float16_of(float value) {  // to nearest even; overflow gives infinity, NaN stays NaN
    const uint32_t bits = bits_of_float(value);
    const uint32_t sign = (bits >> 16) & 0x8000U;
    const uint32_t magnitude = bits & 0x7fffffffU;
    const uint32_t normal = (magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
    // Below 2^-14: adding 0.5 leaves the rounded denormal in the low bits.
    const uint32_t denormal = bits_of_float(float_of(magnitude) + 0.5f) - 0x3f000000U;
    const uint32_t finite = magnitude < 0x38800000U ? denormal : normal;
    const uint32_t infinite = magnitude > 0x7f800000U ? 0x7e00U : 0x7c00U;
    return static_cast<uint16_t>(sign | (magnitude >= 0x477ff000U ? infinite : finite));
}

// One row of a tensor. The pointer counts elements of the dtype's size.
struct TensorRow {
    char* data;
    int64_t stride;
    int32_t dtype;
};

OARLOCK_INLINE TensorRow tensor_row(const oarlock_vectors& tensor, int32_t dtype, int64_t batch, int64_t token,
                                    int64_t head) {
    const int64_t offset = batch * tensor.batch_stride + token * tensor.token_stride + head * tensor.head_stride;
    const int64_t size = dtype == OARLOCK_FLOAT32 ? 4 : 2;
    return {static_cast<char*>(tensor.data) + offset * size, tensor.dim_stride, dtype};
}

OARLOCK_INLINE void read_row(const TensorRow& row, int64_t size, float* target) {
    if (row.dtype == OARLOCK_FLOAT32) {
        const auto* source = reinterpret_cast<const float*>(row.data);
        if (row.stride == 1) {
            for_each_vector(size, [&](int64_t i, auto part) { store(target + i, load(source + i, part), part); });
            return;
        }
        for (int64_t i = 0; i < size; ++i) {
            target[i] = source[i * row.stride];
        }
        return;
    }
    const auto* source = reinterpret_cast<const uint16_t*>(row.data);
    if (row.dtype == OARLOCK_BFLOAT16 && row.stride == 1) {
        for (int64_t i = 0; i < size; ++i) {
            target[i] = float_of_bfloat16(source[i]);
        }
    } else if (row.dtype == OARLOCK_BFLOAT16) {
        for (int64_t i = 0; i < size; ++i) {
            target[i] = float_of_bfloat16(source[i * row.stride]);
        }
    } else if (row.stride == 1) {
        for (int64_t i = 0; i < size; ++i) {
            target[i] = float_of_float16(source[i]);
        }
    } else {
        for (int64_t i = 0; i < size; ++i) {
            target[i] = float_of_float16(source[i * row.stride]);
        }
    }
}

// Results are dense in their last dim.
OARLOCK_INLINE void write_row(const TensorRow& row, int64_t size, const float* source) {
    if (row.dtype == OARLOCK_FLOAT32) {
        auto* target = reinterpret_cast<float*>(row.data);
        for_each_vector(size, [&](int64_t i, auto part) { store(target + i, load(source + i, part), part); });
        return;
    }
    auto* target = reinterpret_cast<uint16_t*>(row.data);
    if (row.dtype == OARLOCK_BFLOAT16) {
        for (int64_t i = 0; i < size; ++i) {
            target[i] = bfloat16_of(source[i]);
        }
    } else {
        for (int64_t i = 0; i < size; ++i) {
            target[i] = float16_of(source[i]);
        }
    }
}

OARLOCK_INLINE bool is_plain(const oarlock_vectors& tensor, int32_t dtype, int64_t size) {
    return dtype == OARLOCK_FLOAT32 && tensor.dim_stride == 1 && size == padded(size);
}

// Copies `count` rows to `stride` floats each, zero padded to padded(size) channels and to `padded_count` rows.
void stage_rows(const oarlock_vectors& tensor, int32_t dtype, int64_t batch, int64_t token, int64_t head, int64_t count,
                int64_t padded_count, int64_t size, float* target) {
    constexpr int64_t kAhead = 8;  // rows; they may lie a page apart, where the hardware does not prefetch
    const int64_t stride = row_stride(size);
    const int64_t width = padded(size);
    const bool plain = is_plain(tensor, dtype, size);
    for (int64_t i = 0; i < count; ++i, target += stride) {
        const TensorRow row = tensor_row(tensor, dtype, batch, token + i, head);
        if (plain) {
            const auto* source = reinterpret_cast<const float*>(row.data);
            const float* const ahead = source + smaller(kAhead, count - 1 - i) * tensor.token_stride;
            for (int64_t d = 0; d < width; d += kLanes) {
                store(target + d, load(source + d, Whole{}), Whole{});
                __builtin_prefetch(ahead + d);
            }
            continue;
        }
        read_row(row, size, target);
        for (int64_t d = size; d < width; ++d) {
            target[d] = 0.0f;
        }
    }
    for (int64_t i = count; i < padded_count; ++i, target += stride) {
        for (int64_t d = 0; d < width; d += kLanes) {
            store(target + d, Floats{}, Whole{});
        }
    }
}

// Whether Moves can copy rows of the tensor: they are floats as they lie, whole pieces, and a tile has room.
OARLOCK_INLINE bool can_move(const oarlock_vectors& tensor, int32_t dtype, int64_t size) {
    return is_plain(tensor, dtype, size) && size * 4 % Moves::kPieceBytes == 0 && size <= 1024;
}

// Rows [token, token + count) of a head.
struct HeadRows {
    const oarlock_vectors& tensor;
    int32_t dtype;
    int64_t batch;
    int64_t head;
    int64_t size;  // channels
    int64_t token;
    int64_t count;
};

OARLOCK_INLINE char* first_row(const HeadRows& rows) {
    return tensor_row(rows.tensor, rows.dtype, rows.batch, rows.token, rows.head).data;
}

// Pieces that Moves needs for them.
OARLOCK_INLINE int64_t num_pieces(const HeadRows& rows) {
    return can_move(rows.tensor, rows.dtype, rows.size) ? rows.count * rows.size * 4 / Moves::kPieceBytes : 0;
}

// Brings rows into the cache.
void touch(const HeadRows& rows, Moves& moves) {
    if (rows.tensor.dim_stride == 1) {
        const int64_t bytes = rows.dtype == OARLOCK_FLOAT32 ? 4 : 2;
        moves.touch(first_row(rows), rows.tensor.token_stride * bytes, rows.size * bytes, rows.count);
    }
}

// Begins to bring rows to `target`, and to zero padding up to padded_count rows. arrive() must follow.
void request(const HeadRows& rows, int64_t padded_count, float* target, Moves& moves) {
    const int64_t stride = row_stride(rows.size);
    if (can_move(rows.tensor, rows.dtype, rows.size)) {
        if (moves.room() < num_pieces(rows)) {
            moves.finish();
        }
        moves.read(first_row(rows), rows.tensor.token_stride * 4, target, stride, rows.size * 4, rows.count);
        for (int64_t i = rows.count; i < padded_count; ++i) {
            std::memset(target + i * stride, 0, static_cast<size_t>(rows.size) * sizeof(float));
        }
    } else {
        touch(rows, moves);
    }
}

// After request() and the end of its moves.
void arrive(const HeadRows& rows, int64_t padded_count, float* target) {
    if (!can_move(rows.tensor, rows.dtype, rows.size)) {
        stage_rows(rows.tensor, rows.dtype, rows.batch, rows.token, rows.head, rows.count, padded_count, rows.size,
                   target);
    }
}

// Writes rows to the tensor, at the end of the moves at the latest.
void send(const HeadRows& rows, const float* source, Moves& moves) {
    const int64_t stride = row_stride(rows.size);
    if (can_move(rows.tensor, rows.dtype, rows.size)) {
        if (moves.room() < num_pieces(rows)) {
            moves.finish();
        }
        moves.write(source, stride, first_row(rows), rows.tensor.token_stride * 4, rows.size * 4, rows.count);
        return;
    }
    for (int64_t i = 0; i < rows.count; ++i) {
        write_row(tensor_row(rows.tensor, rows.dtype, rows.batch, rows.token + i, rows.head), rows.size,
                  source + i * stride);
    }
}

void write_zeros(const HeadRows& rows) {
    const auto bytes = static_cast<size_t>(rows.size * (rows.dtype == OARLOCK_FLOAT32 ? 4 : 2));
    for (int64_t i = 0; i < rows.count; ++i) {
        std::memset(tensor_row(rows.tensor, rows.dtype, rows.batch, rows.token + i, rows.head).data, 0, bytes);
    }
}

// Writes rows to the tensor: those of a panel, each times its factor. `buffer` holds kLanes rows.
void write_panel(const HeadRows& rows, const float* panel, const float* factors, float* buffer) {
    for (int64_t r = 0; r < rows.count; r += kLanes) {
        const TensorRow row = tensor_row(rows.tensor, rows.dtype, rows.batch, rows.token + r, rows.head);
        if (is_plain(rows.tensor, rows.dtype, rows.size) && r + kLanes <= rows.count) {
            transpose_from_panel(panel + r, factors + r, rows.size, reinterpret_cast<float*>(row.data),
                                 rows.tensor.token_stride);
            continue;
        }
        const int64_t stride = row_stride(rows.size);
        transpose_from_panel(panel + r, factors + r, padded(rows.size), buffer, stride);
        for (int64_t i = 0; i < smaller(kLanes, rows.count - r); ++i) {
            write_row(tensor_row(rows.tensor, rows.dtype, rows.batch, rows.token + r + i, rows.head), rows.size,
                      buffer + i * stride);
        }
    }
}

bool are_finite(const float* rows, int64_t count, int64_t size) {
    Floats zero_or_nan = {};
    for (int64_t i = 0; i < count; ++i, rows += row_stride(size)) {
        for (int64_t d = 0; d < padded(size); d += kLanes) {
            zero_or_nan += load(rows + d, Whole{}) * 0.0f;
        }
    }
    return sum_of_lanes(zero_or_nan) == 0.0f;
}

}  // namespace
}  // namespace oarlock
