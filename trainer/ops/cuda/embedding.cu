#include "trainer/ops/cuda/embedding.h"

#include "trainer/ops/cuda/rows.h"

namespace sortie::trainer::ops::cuda {
namespace {

/// The token's row of the table; negative if it has none here.
__device__ __forceinline__ std::int64_t row_of_token(const TableTokens& tokens,
                                                     std::int64_t table_rows, std::int64_t place) {
  const std::int64_t row = tokens.ids[place] - tokens.first;
  return row < table_rows ? row : -1;
}

template <class T>
struct Gather {
  TableTokens tokens;
  Rows<const T> table;
  Rows<T> y;

  template <int N>
  __device__ void at(std::int64_t row, std::int64_t col) const {
    const std::int64_t source = row_of_token(tokens, table.rows, row);
    Pack<T, N> pack{};
    if (source >= 0) pack = read_pack<Pack<T, N>>(table.data + source * table.stride + col);
    write_pack(y.data + row * y.stride + col, pack);
  }
};

constexpr int kRun = 256;       // keys that one block sorts
constexpr int kRunsJoined = 8;  // sorted runs that become one in a pass
constexpr std::int64_t kNoRow = std::int64_t{0x7fffffff} << 32;

/// Sorts runs of kRun keys: a key's position is the number of smaller ones; no two are equal.
__global__ void __launch_bounds__(kRun)
    sort_runs_kernel(TableTokens tokens, std::int64_t table_rows, std::int64_t* keys) {
  auto* run = shared_memory<std::int64_t>();
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t first = std::int64_t{blockIdx.x} * kRun, place = first + thread;
  std::int64_t key = 0;
  if (place < tokens.count) {
    const std::int64_t row = row_of_token(tokens, table_rows, place);
    key = (row >= 0 ? row << 32 : kNoRow) | place;
    run[thread] = key;
  }
  __syncthreads();
  if (place >= tokens.count) return;
  const std::int64_t rest = tokens.count - first;
  const int count = rest < kRun ? static_cast<int>(rest) : kRun;
  int smaller = 0;
#pragma unroll 8
  for (int i = 0; i < count; ++i) smaller += run[i] < key;
  keys[first + smaller] = key;
}

/// Number of sorted keys that are smaller than `key`.
__device__ __forceinline__ std::int64_t count_smaller(const std::int64_t* keys, std::int64_t count,
                                                      std::int64_t key) {
  std::int64_t low = 0;
  while (count > 0) {
    const std::int64_t half = count / 2;
    if (keys[low + half] < key) {
      low += half + 1;
      count -= half + 1;
    } else {
      count = half;
    }
  }
  return low;
}

/// Merges every kRunsJoined runs of `run` keys into one sorted run. A thread has a key and finds
/// its position in each of the other runs.
__global__ void __launch_bounds__(kRun)
    join_runs_kernel(const std::int64_t* from, std::int64_t count, std::int64_t run,
                     std::int64_t* to) {
  const std::int64_t place = std::int64_t{blockIdx.x} * kRun + threadIdx.x;
  if (place >= count) return;
  const std::int64_t key = from[place];
  const std::int64_t joined = place / (run * kRunsJoined) * (run * kRunsJoined);
  std::int64_t target = joined;
  for (int i = 0; i < kRunsJoined; ++i) {
    const std::int64_t begin = joined + i * run;
    if (begin >= count) break;
    const std::int64_t size = count - begin < run ? count - begin : run;
    if (begin <= place && place < begin + size)
      target += place - begin;
    else
      target += count_smaller(from + begin, size, key);
  }
  to[target] = key;
}

/// The thread of a table row's first key adds all rows of dy for that table row, one after another;
/// the others return. It loads kAhead rows of dy at a time.
template <class T>
struct AddByKey {
  const std::int64_t* keys;
  Rows<const T> dy;
  Rows<float> dtable;

  template <int N>
  __device__ void at(std::int64_t place, std::int64_t col) const {
    constexpr int kAhead = 8;
    const std::int64_t row = keys[place] >> 32;
    if (row == kNoRow >> 32 || (place > 0 && keys[place - 1] >> 32 == row)) return;
    Floats<N> sum = load<N>(dtable, row, col);
    for (std::int64_t next = place;;) {
      std::int64_t sources[kAhead];
      int count = 0;
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        sources[i] = 0;
        if (count == i && next + i < dy.rows && keys[next + i] >> 32 == row) {
          sources[i] = keys[next + i] & 0xffffffff;
          ++count;
        }
      }
      Pack<T, N> values[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (i < count) values[i] = read_pack<Pack<T, N>>(dy.data + sources[i] * dy.stride + col);
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (i < count)
#pragma unroll
          for (int j = 0; j < N; ++j) sum.values[j] += to_float(values[i].values[j]);
      if (count < kAhead) break;
      next += kAhead;
    }
    store<N>(dtable, row, col, sum);
  }
};

}  // namespace

template <class T>
void gather_rows(cudaStream_t stream, const TableTokens& tokens, Rows<const T> table, Rows<T> y) {
  for_each_element<T>(stream, {y.rows, y.cols}, Gather<T>{tokens, table, y}, table, y);
}
template void gather_rows(cudaStream_t, const TableTokens&, Rows<const float>, Rows<float>);
template void gather_rows(cudaStream_t, const TableTokens&, Rows<const bf16>, Rows<bf16>);

std::int64_t* sort_tokens(cudaStream_t stream, const TableTokens& tokens, std::int64_t table_rows,
                          std::int64_t* keys, std::int64_t* scratch) {
  const unsigned blocks = blocks_for(tokens.count, kRun);
  launch(sort_runs_kernel,
         {.blocks = blocks, .threads = kRun, .shared_bytes = kRun * sizeof(std::int64_t)}, stream,
         tokens, table_rows, keys);
  for (std::int64_t run = kRun; run < tokens.count; run *= kRunsJoined) {
    launch(join_runs_kernel, {.blocks = blocks, .threads = kRun}, stream,
           static_cast<const std::int64_t*>(keys), tokens.count, run, scratch);
    std::int64_t* sorted = scratch;
    scratch = keys;
    keys = sorted;
  }
  return keys;
}

template <class T>
void add_rows_by_key(cudaStream_t stream, const std::int64_t* keys, Rows<const T> dy,
                     Rows<float> dtable) {
  for_each_element<T>(stream, {dy.rows, dy.cols}, AddByKey<T>{keys, dy, dtable}, dy, dtable);
}
template void add_rows_by_key(cudaStream_t, const std::int64_t*, Rows<const float>, Rows<float>);
template void add_rows_by_key(cudaStream_t, const std::int64_t*, Rows<const bf16>, Rows<float>);

}  // namespace sortie::trainer::ops::cuda
