// A block of DeMo in shared memory: its cosine transform and the inverse, by kDemoThreads threads.
// For demo.cu, which is compiled without contraction to FMA: sums have the CPU's order and bits
// (cpu/demo_block.h).
//
// Rows of a block are kDemoLine apart. Outside of products warp w has the rows w + kDemoWarps i,
// and each lane the columns lane and lane + kWarp.
#pragma once

#include "trainer/ops/cuda/demo.h"
#include "trainer/ops/cuda/device.h"

namespace sortie::trainer::ops::cuda {

inline constexpr int kDemoThreads = 256;
inline constexpr int kDemoWarps = kDemoThreads / kWarp;
inline constexpr int kDemoLine = DemoCosines::kLongest;
inline constexpr int kDemoRows = kDemoLine / kDemoWarps;  // of a warp
inline constexpr int kDemoColumns = kDemoLine / kWarp;    // of a lane
static_assert(kDemoColumns == 2, "masks of rows have two words");

/// What the choice of coefficients needs (demo_choice.h).
struct DemoChoice {
  std::uint16_t indices[kDemoLine * kDemoLine];  // of the chosen coefficients, ascending
  std::int8_t codes[kDemoLine * kDemoLine];      // what is sent of them
  unsigned of_rows[kDemoLine];                   // DemoCount of each row
  unsigned found[2][kDemoWarps];                 // by a round of the search, and the one before
  unsigned largest[kDemoWarps];
};

/// Two of these fit into the 100 KiB of a multiprocessor of compute capability 8.6, 8.9 and 12.0,
/// with the 1 KiB that each block of threads needs itself.
struct DemoMemory {
  alignas(16) float values[kDemoLine * kDemoLine];
  union {
    alignas(16) float half[kDemoLine * kDemoLine];  // transformed along one side
    DemoChoice choice;
    unsigned senders[kDemoLine * kDemoLine];  // of each coefficient
  };
  alignas(16) float basis[kDemoLine * kDemoLine];
  unsigned masks[kDemoLine][kDemoColumns];  // which coefficients of each row are not left out
  float cosines[2][kDemoLine];              // of the block's columns, and of its rows
};
static_assert(sizeof(DemoMemory) <= (100 - 2) * 1024 / 2);

/// Block blockIdx.x of a matrix.
struct DemoPlace {
  int rows, columns;
  std::int64_t first;                         // number of its first element
  float constant_of_row, constant_of_column;  // DemoCosines::constant of its rows and columns

  /// Also copies its cosines to `memory`, which the next __syncthreads() makes visible.
  __device__ __forceinline__ DemoPlace(const DemoMatrix& matrix, DemoMemory& memory) {
    const int y = static_cast<int>(blockIdx.x) / matrix.across.parts;
    const int x = static_cast<int>(blockIdx.x) - y * matrix.across.parts;
    const auto thread = static_cast<int>(threadIdx.x);
    const int longer_row = y < matrix.down.longer ? 1 : 0;
    const int longer_column = x < matrix.across.longer ? 1 : 0;
    rows = matrix.down.size + longer_row;
    columns = matrix.across.size + longer_column;
    constant_of_row = matrix.down.cosines[longer_row].constant;
    constant_of_column = matrix.across.cosines[longer_column].constant;
    if (thread < kDemoLine) {
      memory.cosines[0][thread] = matrix.across.cosines[longer_column].quarter[thread];
      memory.cosines[1][thread] = matrix.down.cosines[longer_row].quarter[thread];
    }
    first = begin_of(matrix.down, y) * matrix.columns + begin_of(matrix.across, x);
  }
  __device__ __forceinline__ bool contains(int row, int column) const {
    return row < rows && column < columns;
  }
  __device__ static __forceinline__ std::int64_t begin_of(const DemoSide& side, int part) {
    return std::int64_t{side.size} * part + min(part, side.longer);
  }
};

/// Calls each(i, j, row, column) for the thread's elements outside of products.
template <class Each>
__device__ __forceinline__ void for_each_of_block(const Each& each) {
#pragma unroll
  for (int i = 0; i < kDemoRows; ++i)
#pragma unroll
    for (int j = 0; j < kDemoColumns; ++j)
      each(i, j, warp_of_thread() + kDemoWarps * i, lane_of_thread() + kWarp * j);
}

enum class BasisRows { positions, frequencies };

/// basis[n][k], or [k][n] if its rows are frequencies, = factor of value n in frequency k for
/// `size` values; 0 elsewhere.
template <BasisRows kind>
__device__ __forceinline__ void fill_basis(int size, float constant, const float* cosines,
                                           float* basis) {
  constexpr bool kPositions = kind == BasisRows::positions;
  const unsigned turn = 4u * static_cast<unsigned>(size);
  const auto warp = static_cast<unsigned>(warp_of_thread());
#pragma unroll
  for (int j = 0; j < kDemoColumns; ++j) {
    const int x = lane_of_thread() + kWarp * j;
    const auto column = static_cast<unsigned>(x);
    // Parts of a turn, (2 n + 1) k, from row to row.
    unsigned parts = (kPositions ? (2 * warp + 1) * column : (2 * column + 1) * warp) % turn;
    const unsigned step = kDemoWarps * (kPositions ? 2 * column : 2 * column + 1) % turn;
    for (int i = 0; i < kDemoRows; ++i) {
      const int y = warp_of_thread() + kDemoWarps * i;
      float value = 0.0f;
      if (x < size && y < size)
        value = (kPositions ? x : y) == 0 ? constant
                                          : DemoCosines::at(cosines, size, static_cast<int>(parts));
      basis[y * kDemoLine + x] = value;
      parts += step;
      if (parts >= turn) parts -= turn;
    }
  }
}

using DemoFour = Pack<float, 4>;

/// The 4 x 4 elements of a product that a thread computes.
struct DemoTile {
  int row, column;
  float sums[4][4] = {};

  __device__ __forceinline__ DemoTile()
      : row(static_cast<int>(threadIdx.x) / (kDemoLine / 4) * 4),
        column(static_cast<int>(threadIdx.x) % (kDemoLine / 4) * 4) {}
  __device__ __forceinline__ static DemoFour four(const float* from) {
    return *reinterpret_cast<const DemoFour*>(from);
  }
  __device__ __forceinline__ void add(int i, float factor, const DemoFour& b) {
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[i][j] += factor * b.values[j];
  }
  __device__ __forceinline__ void store(float* c) const {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      *reinterpret_cast<DemoFour*>(c + (row + i) * kDemoLine +
                                   column) = {{sums[i][0], sums[i][1], sums[i][2], sums[i][3]}};
  }
};

/// c = a b for at least `rows` x `columns` elements, with sums over d < depth in ascending order. a
/// and b are 0 from `depth` up to the next multiple of 4.
__device__ __forceinline__ void multiply_rows(const float* a, const float* b, float* c, int rows,
                                              int columns, int depth) {
  DemoTile tile;
  if (tile.row >= rows || tile.column >= columns) return;
  for (int d = 0; d < depth; d += 4) {
    DemoFour left[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) left[i] = DemoTile::four(a + (tile.row + i) * kDemoLine + d);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const DemoFour right = DemoTile::four(b + (d + e) * kDemoLine + tile.column);
#pragma unroll
      for (int i = 0; i < 4; ++i) tile.add(i, left[i].values[e], right);
    }
  }
  tile.store(c);
}

/// A set of rows: bit r of the two words.
struct DemoRowSet {
  unsigned words[2];
  __device__ __forceinline__ bool contains(int row) const {
    return ((row < kWarp ? words[0] : words[1]) >> (row % kWarp) & 1u) != 0;
  }
};

/// c = the transpose of a times b for at least `rows` x `columns` elements, with sums over the d <
/// depth in `set`, in ascending order.
__device__ __forceinline__ void multiply_columns(const float* a, const float* b, float* c, int rows,
                                                 int columns, int depth, const DemoRowSet& set) {
  DemoTile tile;
  if (tile.row >= rows || tile.column >= columns) return;
#pragma unroll 2
  for (int d = 0; d < depth; ++d) {
    if (!set.contains(d)) continue;
    const DemoFour left = DemoTile::four(a + d * kDemoLine + tile.row);
    const DemoFour right = DemoTile::four(b + d * kDemoLine + tile.column);
#pragma unroll
    for (int i = 0; i < 4; ++i) tile.add(i, left.values[i], right);
  }
  tile.store(c);
}

/// memory.values = DCT(memory.values); overwrites half and basis. Values beyond the block must be
/// 0. All threads call it after a __syncthreads(); the result is visible to all on return.
__device__ __forceinline__ void transform_block(const DemoPlace& place, DemoMemory& memory) {
  fill_basis<BasisRows::positions>(place.columns, place.constant_of_column, memory.cosines[0],
                                   memory.basis);
  __syncthreads();
  multiply_rows(memory.values, memory.basis, memory.half, place.rows, place.columns, place.columns);
  __syncthreads();
  if (place.rows != place.columns) {
    fill_basis<BasisRows::positions>(place.rows, place.constant_of_row, memory.cosines[1],
                                     memory.basis);
    __syncthreads();
  }
  multiply_columns(memory.basis, memory.half, memory.values, place.rows, place.columns, place.rows,
                   {{~0u, ~0u}});
  __syncthreads();
}

/// memory.values = IDCT of the coefficients that memory.masks has of memory.values. Overwrites
/// half. Before the call all threads have passed a __syncthreads() since half and basis were read,
/// and since values and masks were written; the result is visible to all on return. Coefficients
/// that are left out count as 0: they would change no bit of a sum that begins with 0.
__device__ __forceinline__ void restore_block(const DemoPlace& place, DemoMemory& memory) {
  fill_basis<BasisRows::frequencies>(place.columns, place.constant_of_column, memory.cosines[0],
                                     memory.basis);
  __syncthreads();
  for (int row = warp_of_thread(); row < place.rows; row += kDemoWarps) {
    float sums[kDemoColumns] = {};
    const float* const coefficients = memory.values + row * kDemoLine;
    for (int word = 0; word < kDemoColumns; ++word)
      for (unsigned left = memory.masks[row][word]; left != 0; left &= left - 1) {
        const int column = kWarp * word + __ffs(static_cast<int>(left)) - 1;
        const float* const wave = memory.basis + column * kDemoLine + lane_of_thread();
#pragma unroll
        for (int j = 0; j < kDemoColumns; ++j) sums[j] += coefficients[column] * wave[kWarp * j];
      }
#pragma unroll
    for (int j = 0; j < kDemoColumns; ++j)
      memory.half[row * kDemoLine + lane_of_thread() + kWarp * j] = sums[j];
  }
  DemoRowSet frequencies;
#pragma unroll
  for (int word = 0; word < 2; ++word) {
    const unsigned* const masks = memory.masks[kWarp * word + lane_of_thread()];
    frequencies.words[word] = __ballot_sync(kAllLanes, (masks[0] | masks[1]) != 0);
  }
  __syncthreads();
  if (place.rows != place.columns) {
    fill_basis<BasisRows::frequencies>(place.rows, place.constant_of_row, memory.cosines[1],
                                       memory.basis);
    __syncthreads();
  }
  multiply_columns(memory.basis, memory.half, memory.values, place.rows, place.columns, place.rows,
                   frequencies);
  __syncthreads();
}

}  // namespace sortie::trainer::ops::cuda
