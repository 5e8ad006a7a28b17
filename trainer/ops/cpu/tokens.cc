#include "trainer/ops/cpu/cpu_backend.h"
#include "trainer/ops/targets.h"

namespace sortie::trainer::ops {

void CpuBackend::count_positions(ExecutionContext&, std::int64_t first, Tensor& positions) {
  const std::int64_t length = positions.size(1);
  auto* out = positions.data<std::int32_t>();
  for (std::int64_t i = 0; i < positions.elements(); ++i)
    out[i] = static_cast<std::int32_t>(first + i % length);
}

void CpuBackend::find_documents(ExecutionContext&, const Tensor& tokens, std::int32_t end,
                                const Tensor& targets, Tensor& starts, Tensor& positions) {
  const std::int64_t length = tokens.size(1);
  const auto* ids = tokens.data<std::int32_t>();
  const auto* wanted = targets.defined() ? targets.data<std::int32_t>() : nullptr;
  auto* starts_at = starts.data<std::int32_t>();
  auto* places = positions.defined() ? positions.data<std::int32_t>() : nullptr;
  std::int32_t start = 0;
  for (std::int64_t i = 0; i < tokens.elements(); ++i) {
    const auto t = static_cast<std::int32_t>(i % length);
    if (t == 0)
      start = 0;
    else if (ids[i - 1] == end || (wanted != nullptr && wanted[i - 1] == kDocumentEnds))
      start = t;
    starts_at[i] = start;
    if (places != nullptr) places[i] = t - start;
  }
}

void CpuBackend::shift_tokens(ExecutionContext&, const Tensor& tokens, const Tensor& starts,
                              std::int64_t distance, std::int32_t missing, Tensor& shifted) {
  const std::int64_t length = tokens.size(1);
  const auto* in = tokens.data<std::int32_t>();
  const auto* start = starts.defined() ? starts.data<std::int32_t>() : nullptr;
  auto* out = shifted.data<std::int32_t>();
  for (std::int64_t at = 0; at < tokens.elements(); ++at) {
    const bool there =
        at % length + distance < length && (start == nullptr || start[at + distance] == start[at]);
    out[at] = there ? in[at + distance] : missing;
  }
}

}  // namespace sortie::trainer::ops
