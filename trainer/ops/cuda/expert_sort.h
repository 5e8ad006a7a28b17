// Kernels that count and sort choices of experts. Each launcher adds its kernels to the stream and
// returns at once.
#pragma once

#include <cuda_runtime.h>

#include "trainer/ops/cuda/views.h"
#include "trainer/ops/cuda/work_sizes.h"

namespace sortie::trainer::ops::cuda {

/// Choices of experts, in `segments` parts of equal length. An expert out of range traps: later use
/// of the GPU by this process fails. With `limited`, -1 is a choice that no expert takes.
struct Choices {
  const std::int32_t* data = nullptr;
  std::int64_t count = 0, segments = 1;
  int experts = 0;
  bool limited = false;
};
/// Choices are counted in chunks of each segment. Returns the number of counts of all chunks, for
/// which callers need scratch memory.
inline std::int64_t chunk_counts_of(const Choices& choices) {
  return chunk_counts(choices.count, choices.segments, choices.experts);
}

/// counts [segments, E], overwritten. T: float, double.
template <class T>
void count_experts(cudaStream_t stream, const Choices& choices, std::int32_t* chunk_counts,
                   T* counts);

/// How many choices of each sequence an expert accepts; a sequence is `parts` segments.
struct ExpertLimit {
  std::int32_t capacity = 0;
  const double* before = nullptr;  // [parts, segments / parts, E]: choices earlier in the sequence
  std::int64_t parts = 1;
};
/// kept = choices, or -1 for those beyond an expert's capacity; *dropped += the number of those.
/// `starts` is scratch memory like chunk_counts, `late` of [segments * E].
void limit_experts(cudaStream_t stream, const Choices& choices, const ExpertLimit& limit,
                   std::int32_t* chunk_counts, std::int32_t* starts, std::int32_t* late,
                   std::int32_t* kept, double* dropped);

/// ExpertRows as a kernel argument.
struct SortedRows {
  std::int64_t* begin = nullptr;   // [E + 1]
  std::int32_t* row_of = nullptr;  // [choices]
  std::int32_t* source = nullptr;  // [capacity]
  std::int64_t tokens = 0, capacity = 0, unit = 1;
  int top_k = 0, experts = 0;
};
/// Fills begin, row_of and source. `starts` is scratch memory like chunk_counts.
void sort_choices(cudaStream_t stream, const Choices& choices, const SortedRows& rows,
                  std::int32_t* chunk_counts, std::int32_t* starts);

}  // namespace sortie::trainer::ops::cuda
