#include "trainer/ops/cuda/grouped_linear.h"

#include <algorithm>
#include <type_traits>

#include "trainer/ops/cuda/launch.h"
#include "trainer/ops/cuda/tile_product.h"

namespace sortie::trainer::ops::cuda {
namespace {

/// Addresses are passed as arguments: more experts than this need more launches.
constexpr int kExpertsAtOnce = 256;
template <class T>
struct PerExpert {
  T* data[kExpertsAtOnce] = {};
};

template <class T>
struct Products {
  const std::int64_t* begin = nullptr;  // [experts + 1]
  int experts = 0;
  Rows<const T> in;
  std::int64_t weight_stride = 0;
  Rows<T> out;
  PerExpert<const T> weights;
};

/// first_tile [experts + 1] in shared memory: number of tiles of the experts before each.
template <int kTileRows>
__device__ __forceinline__ void count_tiles(const std::int64_t* begin, int experts, int col_tiles,
                                            int* first_tile) {
  const int lane = static_cast<int>(threadIdx.x);
  if (lane < kWarp) {
    int before = 0;
    for (int first = 0; first < experts; first += kWarp) {
      const int e = first + lane;
      const std::int64_t rows = e < experts ? begin[e + 1] - begin[e] : 0;
      const int own = static_cast<int>((rows + kTileRows - 1) / kTileRows) * col_tiles;
      int sum = own;
      for (int distance = 1; distance < kWarp; distance *= 2) {
        const int other = __shfl_up_sync(kAllLanes, sum, static_cast<unsigned>(distance));
        if (lane >= distance) sum += other;
      }
      if (e < experts) first_tile[e] = before + sum - own;
      before += __shfl_sync(kAllLanes, sum, kWarp - 1);
    }
    if (lane == 0) first_tile[experts] = before;
  }
  __syncthreads();
}

/// The expert to which the tile belongs.
__device__ __forceinline__ int expert_of(const int* first_tile, int experts, int tile) {
  int low = 0, high = experts;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (first_tile[middle] <= tile ? low : high) = middle;
  }
  return low;
}

/// Blocks take tiles in turn until none are left. An expert's tiles are consecutive, rows first, so
/// that concurrent blocks share a part of its weight.
template <class Tile, bool kPairs>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    products_kernel(const __grid_constant__ Products<typename Tile::Element> p) {
  using T = typename Tile::Element;
  auto* shared = shared_memory<unsigned char>();
  auto* first_tile = reinterpret_cast<int*>(shared + Tile::kBytes);
  const int cols = static_cast<int>(p.out.cols);
  count_tiles<Tile::kM>(p.begin, p.experts, (cols + Tile::kN - 1) / Tile::kN, first_tile);
  for (int tile = static_cast<int>(blockIdx.x); tile < first_tile[p.experts];
       tile += static_cast<int>(gridDim.x)) {
    const int e = expert_of(first_tile, p.experts, tile);
    const std::int64_t begin = p.begin[e];
    const int rows = static_cast<int>(p.begin[e + 1] - begin), at = tile - first_tile[e];
    const int row_tiles = (rows + Tile::kM - 1) / Tile::kM;
    const int row = at % row_tiles * Tile::kM, col = at / row_tiles * Tile::kN;
    const int depth = static_cast<int>(p.in.cols);
    typename Tile::Sums sums;
    Tile::multiply(shared, {p.in.data + begin * p.in.stride, p.in.stride, rows, depth},
                   {p.weights.data[e], p.weight_stride, cols, depth}, row, col, sums);
    T* out = p.out.data + begin * p.out.stride;
#pragma unroll
    for (int part = 0; part < Tile::kParts; ++part)
      Tile::for_pairs(sums, part, [&](int, int i, int j, float low, float high) {
        if (row + i >= rows || col + j >= cols) return;
        T* to = out + (row + i) * p.out.stride + (col + j);
        const Pack<T, 2> pair{{from_float<T>(low), from_float<T>(high)}};
        if constexpr (kPairs) {
          write_pack(to, pair);
        } else {
          to[0] = pair.values[0];
          if (col + j + 1 < cols) to[1] = pair.values[1];
        }
      });
  }
}

template <class T>
struct Gradients {
  const std::int64_t* begin = nullptr;
  Rows<const T> dy, x;
  PerExpert<float> dw;
};

/// A block per tile of every expert's gradient.
template <class Tile, bool kPairs>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    gradients_kernel(const __grid_constant__ Gradients<typename Tile::Element> g) {
  const int rows = static_cast<int>(g.dy.cols), cols = static_cast<int>(g.x.cols);
  const int row_tiles = (rows + Tile::kM - 1) / Tile::kM;
  const int col_tiles = (cols + Tile::kN - 1) / Tile::kN;
  const int e = static_cast<int>(blockIdx.x) / (row_tiles * col_tiles);
  const int at = static_cast<int>(blockIdx.x) % (row_tiles * col_tiles);
  const int row = at % row_tiles * Tile::kM, col = at / row_tiles * Tile::kN;
  const std::int64_t begin = g.begin[e];
  const int depth = static_cast<int>(g.begin[e + 1] - begin);
  float* dw = g.dw.data[e];
  if (depth == 0 || dw == nullptr) return;
  typename Tile::Sums sums;
  Tile::multiply(shared_memory<unsigned char>(),
                 {g.dy.data + begin * g.dy.stride, g.dy.stride, rows, depth},
                 {g.x.data + begin * g.x.stride, g.x.stride, cols, depth}, row, col, sums);
  const auto inside = [&](int i, int j) { return row + i < rows && col + j < cols; };
  float* tile = dw + std::int64_t{row} * cols + col;
#pragma unroll
  for (int part = 0; part < Tile::kParts; ++part) {
    // Reads all of a part before it writes any of it: one wait for memory, not one per pair.
    Pack<float, 2> before[Tile::kPartPairs];
    Tile::for_pairs(sums, part, [&](int pair, int i, int j, float, float) {
      if (!inside(i, j)) return;
      const float* from = tile + (std::int64_t{i} * cols + j);
      if constexpr (kPairs) {
        before[pair] = read_pack<Pack<float, 2>>(from);
      } else {
        before[pair].values[0] = from[0];
        if (inside(i, j + 1)) before[pair].values[1] = from[1];
      }
    });
    Tile::for_pairs(sums, part, [&](int pair, int i, int j, float low, float high) {
      if (!inside(i, j)) return;
      float* to = tile + (std::int64_t{i} * cols + j);
      const Pack<float, 2> after{{before[pair].values[0] + low, before[pair].values[1] + high}};
      if constexpr (kPairs) {
        write_pack(to, after);
      } else {
        to[0] = after.values[0];
        if (inside(i, j + 1)) to[1] = after.values[1];
      }
    });
  }
}

bool aligned(const void* address, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
}
/// True if rows consist of whole, aligned chunks of 16 bytes.
template <class T>
bool aligned(const Rows<T>& rows) {
  return aligned(rows.data, 16) && rows.cols % kPackOf<T> == 0 && rows.stride % kPackOf<T> == 0;
}

std::int64_t attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  check(cudaGetDevice(&device), "a look at a GPU");
  check(cudaDeviceGetAttribute(&value, which, device), "a look at a GPU");
  return value;
}

/// Number of blocks of a kernel that the GPU runs at once.
template <class Tile>
std::int64_t room_for_blocks(std::size_t shared_bytes) {
  // 1 KiB is reserved per block in addition; one block can use all of the rest.
  constexpr std::int64_t kReserved = 1 << 10;
  const std::int64_t shared = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) + kReserved;
  const std::int64_t fit = shared / (static_cast<std::int64_t>(shared_bytes) + kReserved);
  return attribute(cudaDevAttrMultiProcessorCount) *
         std::clamp<std::int64_t>(fit, 1, Tile::kBlocks);
}

/// Calls launch_part(first expert, experts) until all experts are covered.
template <class LaunchPart>
void by_parts(std::size_t experts, const LaunchPart& launch_part) {
  for (std::size_t first = 0; first < experts; first += kExpertsAtOnce)
    launch_part(first, std::min<std::size_t>(kExpertsAtOnce, experts - first));
}

template <class Tile, bool kPairs, class T>
void launch_products(cudaStream_t stream, const ExpertRanges& rows, const Products<T>& products) {
  const std::int64_t col_tiles = blocks_for(products.out.cols, Tile::kN);
  const std::int64_t most_tiles = (rows.capacity / Tile::kM + products.experts) * col_tiles;
  const std::size_t shared_bytes =
      Tile::kBytes + static_cast<std::size_t>(products.experts + 1) * sizeof(int);
  const std::int64_t blocks = std::min(most_tiles, room_for_blocks<Tile>(shared_bytes));
  launch(products_kernel<Tile, kPairs>,
         {.blocks = static_cast<unsigned>(blocks),
          .threads = Tile::kThreads,
          .shared_bytes = shared_bytes},
         stream, products);
}

template <class Tile, bool kPairs, class T>
void launch_gradients(cudaStream_t stream, std::int64_t experts, const Gradients<T>& gradients) {
  const std::int64_t tiles = std::int64_t{blocks_for(gradients.dy.cols, Tile::kM)} *
                             blocks_for(gradients.x.cols, Tile::kN);
  launch(gradients_kernel<Tile, kPairs>,
         {.blocks = static_cast<unsigned>(experts * tiles),
          .threads = Tile::kThreads,
          .shared_bytes = Tile::kBytes},
         stream, gradients);
}

template <bool kTransposedA, bool kTransposedB>
using LargeTile = Bf16Tile<128, 128, 2, 2, kTransposedA, kTransposedB, true>;
template <bool kTransposedA, bool kTransposedB>
using MiddleTile = Bf16Tile<64, 128, 2, 2, kTransposedA, kTransposedB, true>;
template <bool kTransposedA, bool kTransposedB, bool kAligned>
using FlatTile = Bf16Tile<32, 128, 1, 4, kTransposedA, kTransposedB, kAligned>;

/// The last tile of an expert is half empty on average. From this many rows per expert on, at most
/// a third of the work on tiles of 64 rows, or a quarter of that on 128, is lost to it.
constexpr std::int64_t kRowsForMiddle = 64, kRowsForLarge = 192;

template <bool kTransposed, class T>
void launch_best(cudaStream_t stream, const ExpertRanges& rows, const Products<T>& products,
                 bool all_aligned) {
  if constexpr (std::is_same_v<T, float>) {
    launch_products<F32Tile<false, kTransposed>, false>(stream, rows, products);
  } else {
    if (!all_aligned)
      launch_products<FlatTile<false, kTransposed, false>, false>(stream, rows, products);
    else if (rows.usual < kRowsForMiddle)
      launch_products<FlatTile<false, kTransposed, true>, true>(stream, rows, products);
    else if (rows.usual < kRowsForLarge)
      launch_products<MiddleTile<false, kTransposed>, true>(stream, rows, products);
    else
      launch_products<LargeTile<false, kTransposed>, true>(stream, rows, products);
  }
}

}  // namespace

template <class T>
void multiply_experts(cudaStream_t stream, const ExpertRanges& rows, Rows<const T> in,
                      std::span<const T* const> weights, bool transposed, Rows<T> out) {
  const std::int64_t weight_stride = transposed ? out.cols : in.cols;
  bool all_aligned = aligned(in) && aligned(out);
  for (const T* weight : weights) all_aligned = all_aligned && aligned(weight, 16);
  by_parts(weights.size(), [&](std::size_t first, std::size_t experts) {
    Products<T> products{rows.begin + first, static_cast<int>(experts), in, weight_stride, out, {}};
    std::copy_n(weights.begin() + first, experts, products.weights.data);
    if (transposed)
      launch_best<true>(stream, rows, products, all_aligned);
    else
      launch_best<false>(stream, rows, products, all_aligned);
  });
}
template void multiply_experts(cudaStream_t, const ExpertRanges&, Rows<const float>,
                               std::span<const float* const>, bool, Rows<float>);
template void multiply_experts(cudaStream_t, const ExpertRanges&, Rows<const bf16>,
                               std::span<const bf16* const>, bool, Rows<bf16>);

template <class T>
void add_expert_gradients(cudaStream_t stream, const ExpertRanges& rows, Rows<const T> dy,
                          Rows<const T> x, std::span<float* const> dw) {
  bool all_aligned = aligned(dy) && aligned(x);
  for (const float* gradient : dw) all_aligned = all_aligned && aligned(gradient, 8);
  by_parts(dw.size(), [&](std::size_t first, std::size_t experts) {
    Gradients<T> gradients{rows.begin + first, dy, x, {}};
    std::copy_n(dw.begin() + first, experts, gradients.dw.data);
    const auto count = static_cast<std::int64_t>(experts);
    if constexpr (std::is_same_v<T, float>)
      launch_gradients<F32Tile<true, true>, false>(stream, count, gradients);
    else if (all_aligned)
      launch_gradients<LargeTile<true, true>, true>(stream, count, gradients);
    else
      launch_gradients<FlatTile<true, true, false>, false>(stream, count, gradients);
  });
}
template void add_expert_gradients(cudaStream_t, const ExpertRanges&, Rows<const float>,
                                   Rows<const float>, std::span<float* const>);
template void add_expert_gradients(cudaStream_t, const ExpertRanges&, Rows<const bf16>,
                                   Rows<const bf16>, std::span<float* const>);

}  // namespace sortie::trainer::ops::cuda
