#include "trainer/ops/cuda/fp8.h"

#include "trainer/ops/cuda/fp8_codes.h"
#include "trainer/ops/cuda/rows.h"
#include "trainer/ops/cuda/work_sizes.h"

namespace sortie::trainer::ops::cuda {
namespace {

constexpr int kCastThreads = 256;
constexpr int kCastWarps = kCastThreads / kWarp;
constexpr int kPack = 8;   // values of a thread at a time, 16 bytes
constexpr int kTile = static_cast<int>(kFp8Tile);
/// Bytes between the columns of a tile in shared memory: whole words, such that the rows of threads
/// are in different banks.
constexpr int kTileLine = kTile + 4;

/// A block's largest value, in every thread. `scratch`: a float per warp.
__device__ __forceinline__ float block_max(float value, float* scratch) {
  value = warp_max(value);
  if (lane_of_thread() == 0) scratch[warp_of_thread()] = value;
  __syncthreads();
  float largest = 0.0f;
  for (int warp = 0; warp < kCastWarps; ++warp) largest = fmaxf(largest, scratch[warp]);
  __syncthreads();
  return largest;
}

/// A history's largest value; 0 if there is none.
__device__ __forceinline__ float history_max(const float* history) {
  float largest = 0.0f;
  if (history == nullptr) return largest;
#pragma unroll
  for (int step = 0; step < kFp8History; ++step) largest = fmaxf(largest, history[step]);
  return largest;
}

/// |value| if it is finite, else 0.
__device__ __forceinline__ float finite_size(float value) {
  const float size = fabsf(value);
  return size <= kLargestFinite ? size : 0.0f;
}

/// A warp per row; a block takes every gridDim.x-th group of eight rows.
template <int N>
__global__ void __launch_bounds__(kCastThreads)
    largest_kernel(Rows<const bf16> x, Fp8Largest to) {
  if (history_max(to.history) > 0.0f) return;
  float largest = 0.0f;
  for (std::int64_t row = std::int64_t{blockIdx.x} * kCastWarps + warp_of_thread(); row < x.rows;
       row += std::int64_t{gridDim.x} * kCastWarps)
#pragma unroll 4
    for (std::int64_t col = lane_of_thread() * N; col < x.cols; col += kWarp * N) {
      const Floats<N> values = load<N>(x, row, col);
#pragma unroll
      for (int i = 0; i < N; ++i) largest = fmaxf(largest, finite_size(values.values[i]));
    }
  largest = block_max(largest, shared_memory<float>());
  if (threadIdx.x == 0) to.parts[blockIdx.x] = largest;
}

/// A block per tile. Each thread computes the codes of kPack values of a row and writes them to
/// memory, and column by column to shared memory. Then each writes kFp8Unit codes of a column.
template <Fp8Format F, int N>
__global__ void __launch_bounds__(kCastThreads)
    cast_kernel(Rows<const bf16> x, Fp8Largest from, Fp8Copy to) {
  float* scratch = shared_memory<float>();
  std::uint8_t* tile = reinterpret_cast<std::uint8_t*>(scratch + kCastWarps);
  const int thread = static_cast<int>(threadIdx.x);
  float known = history_max(from.history);
  if (known == 0.0f) known = block_max(thread < from.count ? from.parts[thread] : 0.0f, scratch);
  const int exponent = scale_exponent<F>(known);
  const float scale = power_of_two(exponent);
  if (blockIdx.x == 0 && blockIdx.y == 0 && thread == 0) *to.inverse_scale = power_of_two(-exponent);
  const std::int64_t first_row = std::int64_t{blockIdx.y} * kTile;
  const std::int64_t first_col = std::int64_t{blockIdx.x} * kTile;
  constexpr int kPacks = kTile / kPack, kTurn = kCastThreads / kPacks;
  const int pack = thread % kPacks;
  const std::int64_t col = first_col + pack * kPack;
  float largest = 0.0f;
#pragma unroll
  for (int turn = 0; turn < kTile; turn += kTurn) {
    const int in_tile = turn + thread / kPacks;
    const std::int64_t row = first_row + in_tile;
    if (row >= x.rows || col >= x.cols) continue;
    float values[kPack];
#pragma unroll
    for (int part = 0; part < kPack; part += N) {
      const Floats<N> some = load<N>(x, row, col + part);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        largest = fmaxf(largest, finite_size(some.values[i]));
        values[part + i] = some.values[i] * scale;
      }
    }
    Pack<std::uint8_t, kPack> codes;
#pragma unroll
    for (int i = 0; i < kPack; i += 2) {
      const std::uint16_t two = fp8_codes<F>(values[i], values[i + 1]);
      codes.values[i] = static_cast<std::uint8_t>(two);
      codes.values[i + 1] = static_cast<std::uint8_t>(two >> 8);
    }
    if (to.rows != nullptr) write_pack(to.rows + row * x.cols + col, codes);
    if (to.columns != nullptr)
#pragma unroll
      for (int i = 0; i < kPack; ++i)
        tile[(pack * kPack + i) * kTileLine + in_tile] = codes.values[i];
  }
  if (to.tiles != nullptr) {
    largest = block_max(largest, scratch);
    if (thread == 0) to.tiles[blockIdx.y * gridDim.x + blockIdx.x] = largest;
  }
  if (to.columns == nullptr) return;
  __syncthreads();
  constexpr int kUnits = kTile / static_cast<int>(kFp8Unit);
  const int tile_col = thread / kUnits, tile_row = thread % kUnits * static_cast<int>(kFp8Unit);
  if (first_col + tile_col >= x.cols || first_row + tile_row >= x.rows) return;
  Pack<std::uint8_t, kFp8Unit> codes;
#pragma unroll
  for (int i = 0; i < kFp8Unit; i += 4) {
    const auto word =
        *reinterpret_cast<const Pack<std::uint8_t, 4>*>(tile + tile_col * kTileLine + tile_row + i);
#pragma unroll
    for (int j = 0; j < 4; ++j) codes.values[i + j] = word.values[j];
  }
  write_pack(to.columns + (first_col + tile_col) * x.rows + first_row + tile_row, codes);
}

/// One block.
__global__ void __launch_bounds__(kCastThreads)
    note_kernel(Flat<const float> tiles, float* __restrict__ current) {
  float largest = 0.0f;
  for (std::int64_t i = threadIdx.x; i < tiles.size; i += kCastThreads)
    largest = fmaxf(largest, tiles.data[i]);
  largest = block_max(largest, shared_memory<float>());
  if (threadIdx.x == 0) *current = fmaxf(*current, largest);
}

/// A thread per row.
__global__ void __launch_bounds__(kCastThreads)
    roll_kernel(float* __restrict__ history, Flat<float> current) {
  const std::int64_t row = std::int64_t{blockIdx.x} * kCastThreads + threadIdx.x;
  if (row >= current.size) return;
  float* own = history + row * kFp8History;
  for (std::int64_t step = kFp8History - 1; step > 0; --step) own[step] = own[step - 1];
  own[0] = current.data[row];
  current.data[row] = 0.0f;
}

template <Fp8Format F>
void start_cast(cudaStream_t stream, Rows<const bf16> x, const Fp8Largest& largest,
                const Fp8Copy& to) {
  const Grid grid{.blocks = {blocks_for(x.cols, kTile), blocks_for(x.rows, kTile)},
                  .threads = kCastThreads,
                  .shared_bytes = kCastWarps * sizeof(float) + kTile * kTileLine};
  if (has_packs<kPack>(x))
    launch(cast_kernel<F, kPack>, grid, stream, x, largest, to);
  else
    launch(cast_kernel<F, 1>, grid, stream, x, largest, to);
}

}  // namespace

void find_largest(cudaStream_t stream, Rows<const bf16> x, const Fp8Largest& largest) {
  const Grid grid{.blocks = static_cast<unsigned>(largest.count),
                  .threads = kCastThreads,
                  .shared_bytes = kCastWarps * sizeof(float)};
  if (has_packs<kPack>(x))
    launch(largest_kernel<kPack>, grid, stream, x, largest);
  else
    launch(largest_kernel<1>, grid, stream, x, largest);
}

void cast_to_fp8(cudaStream_t stream, Rows<const bf16> x, const Fp8Largest& largest,
                 Fp8Format format, const Fp8Copy& to) {
  if (format == Fp8Format::e4m3)
    start_cast<Fp8Format::e4m3>(stream, x, largest, to);
  else
    start_cast<Fp8Format::e5m2>(stream, x, largest, to);
}

void note_largest(cudaStream_t stream, Flat<const float> tiles, float* current) {
  launch(note_kernel,
         {.blocks = 1, .threads = kCastThreads, .shared_bytes = kCastWarps * sizeof(float)}, stream,
         tiles, current);
}

void roll_histories(cudaStream_t stream, float* history, Flat<float> current) {
  launch(roll_kernel,
         {.blocks = blocks_for(current.size, kCastThreads), .threads = kCastThreads}, stream,
         history, current);
}

}  // namespace sortie::trainer::ops::cuda
