// The CPU backend of an ExecutionContext: oneDNN engine and stream, the cache of products, the
// table of row kernels, and how work is split over threads. Included by *_cpu.cc files only.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "trainer/ops/kernels/table.h"
#include "trainer/ops/matmul_cpu.h"
#include "trainer/tensor/context.h"

namespace sortie::trainer {

struct ExecutionContext::Backend {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  const ops::Kernels* kernels = nullptr;
  using Matmuls =
      std::unordered_map<ops::MatmulSpec, std::shared_ptr<const ops::Matmul>, ops::MatmulSpecHash>;
  Matmuls matmuls;
};

namespace ops {

inline const Kernels& kernels(ExecutionContext& context) {
  return *context.backend().kernels;
}
inline const TypedKernels& typed_kernels(ExecutionContext& context, DType dtype) {
  return dtype == DType::bf16 ? kernels(context).bf16 : kernels(context).f32;
}

/// Calls body(begin, end) for consecutive ranges that cover [0, count), each a multiple of `grain`
/// long but the last. Which elements share a range of `grain` never depends on the thread count.
template <class Body>
void parallel_ranges(ExecutionContext& context, std::int64_t count, std::int64_t grain,
                     const Body& body) {
  const std::int64_t pieces = (count + grain - 1) / grain;
  const int threads = static_cast<int>(std::min<std::int64_t>(context.threads(), pieces));
  if (threads <= 1) {
    for (std::int64_t piece = 0; piece < pieces; ++piece)
      body(piece * grain, std::min(count, (piece + 1) * grain));
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    const std::int64_t team = omp_get_num_threads();
    const std::int64_t self = omp_get_thread_num();
    for (std::int64_t piece = pieces * self / team; piece < pieces * (self + 1) / team; ++piece)
      body(piece * grain, std::min(count, (piece + 1) * grain));
  }
}

/// Calls body(task, thread) for every task in [0, tasks), handed out one by one.
template <class Body>
void parallel_tasks(ExecutionContext& context, std::int64_t tasks, const Body& body) {
  const int threads = static_cast<int>(std::min<std::int64_t>(context.threads(), tasks));
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (threads > 1)
  for (std::int64_t task = 0; task < tasks; ++task) body(task, omp_get_thread_num());
}

}  // namespace ops
}  // namespace sortie::trainer
