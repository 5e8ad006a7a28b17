// Measures time and correctness of the collectives of a group, as nccl-tests do.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

struct CollectiveBench {
  std::vector<std::string> operations;                 // of collective_bench_names()
  std::int64_t from = 8, to = std::int64_t{64} << 20;  // sizes in bytes
  std::int64_t factor = 4;                             // between successive sizes
  DType dtype = DType::f32;
  Device device = {};  // holds the values
  ReduceOp reduce = ReduceOp::sum;
  int iterations = 20;   // at most, per size; after one to warm up, within `seconds`
  double seconds = 2.0;  // per size, about
};

struct CollectiveRow {
  std::string operation;
  std::int64_t bytes = 0, count = 0;  // size of the larger side in bytes and in elements
  double us = 0;                      // per operation, on the slowest rank
  double algbw = 0, busbw = 0;        // GB/s
  std::int64_t wrong = 0;             // wrong elements, on all ranks
};

/// Names of the operations: "all_reduce", "reduce_scatter", "all_gather", "broadcast",
/// "all_to_all", "ring" (every rank sends to the next).
std::vector<std::string> collective_bench_names();
/// Whether the operation reduces values.
bool reduces(const std::string& operation);

/// Element `index` that rank `rank` of `ranks` contributes: a small whole number. Sums over the
/// ranks are exact in any order except for one rounding at the end. Between GPUs each partial sum
/// is rounded, so sums of bf16 are at most 256, up to which bf16 has all whole numbers.
std::int64_t bench_element(DType dtype, bool summed, int ranks, int rank, std::int64_t index);

/// Collective call. Calls `on_row` on every rank as soon as a row is known. The group must have at
/// least two ranks, and `reduce` must support the dtype.
std::vector<CollectiveRow> bench_collectives(
    Communicator& group, const CollectiveBench& bench,
    const std::function<void(const CollectiveRow&)>& on_row);

}  // namespace sortie::trainer
