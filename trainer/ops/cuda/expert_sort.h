// Kernels that count choices of experts and sort them. Each launcher goes to the stream and returns
// at once.
#pragma once

#include <cuda_runtime.h>

#include "trainer/ops/cuda/views.h"
#include "trainer/ops/cuda/work_sizes.h"

namespace sortie::trainer::ops::cuda {

/// Experts that were chosen, in `segments` parts of equal length. An expert that does not exist
/// ends the use of the GPU with an error; -1 where `limited`: a choice that no expert takes.
struct Choices {
  const std::int32_t* data = nullptr;
  std::int64_t count = 0, segments = 1;
  int experts = 0;
  bool limited = false;
};
/// Choices are counted in chunks of each segment: the counts of all chunks are so many numbers,
/// which callers have scratch memory for.
inline std::int64_t chunk_counts_of(const Choices& choices) {
  return chunk_counts(choices.count, choices.segments, choices.experts);
}

/// counts [segments, E], overwritten. T: float, double.
template <class T>
void count_experts(cudaStream_t stream, const Choices& choices, std::int32_t* chunk_counts,
                   T* counts);

/// How many choices of each sequence an expert takes; sequences are `parts` segments each.
struct ExpertLimit {
  std::int32_t capacity = 0;
  const double* before = nullptr;  // [parts, segments / parts, E]: choices earlier in the sequence
  std::int64_t parts = 1;
};
/// kept = choices, or -1 for those that come when an expert has all that it takes; *dropped += how
/// many. `starts` is scratch like chunk_counts, `late` of [segments * E].
void limit_experts(cudaStream_t stream, const Choices& choices, const ExpertLimit& limit,
                   std::int32_t* chunk_counts, std::int32_t* starts, std::int32_t* late,
                   std::int32_t* kept, double* dropped);

/// ExpertRows, as kernels are told.
struct SortedRows {
  std::int64_t* begin = nullptr;   // [E + 1]
  std::int32_t* row_of = nullptr;  // [choices]
  std::int32_t* source = nullptr;  // [capacity]
  std::int64_t tokens = 0, capacity = 0, unit = 1;
  int top_k = 0, experts = 0;
};
/// Fills begin, row_of and source. `starts` is scratch like chunk_counts.
void sort_choices(cudaStream_t stream, const Choices& choices, const SortedRows& rows,
                  std::int32_t* chunk_counts, std::int32_t* starts);

}  // namespace sortie::trainer::ops::cuda
