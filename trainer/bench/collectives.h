// Time and correctness of the collectives of a group, as nccl-tests measure them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

struct CollectiveBench {
  std::vector<std::string> operations;                 // names of collective_bench_names()
  std::int64_t from = 8, to = std::int64_t{64} << 20;  // bytes
  std::int64_t factor = 4;                             // between sizes
  DType dtype = DType::f32;
  Device device = {};  // whose memory the values are in
  ReduceOp reduce = ReduceOp::sum;
  int iterations = 20;   // of a size, as far as `seconds` allow; after one to warm up
  double seconds = 2.0;  // of a size, about
};

struct CollectiveRow {
  std::string operation;
  std::int64_t bytes = 0, count = 0;  // of the larger side; elements of it
  double us = 0;                      // of one, on the slowest rank
  double algbw = 0, busbw = 0;        // GB/s
  std::int64_t wrong = 0;             // elements, on all ranks
};

/// "all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "ring" (every rank
/// sends to the next).
std::vector<std::string> collective_bench_names();
/// Whether values are added or compared by it.
bool reduces(const std::string& operation);

/// Collective. `on_row` is called on every rank as soon as a row is known. The group has two ranks
/// or more; the dtype can be reduced by `reduce`.
std::vector<CollectiveRow> bench_collectives(
    Communicator& group, const CollectiveBench& bench,
    const std::function<void(const CollectiveRow&)>& on_row);

}  // namespace sortie::trainer
