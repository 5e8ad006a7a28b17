#include "trainer/planning/fp8_rules.h"

#include <fmt/core.h>

#include <algorithm>

#include "trainer/ops/fp8_format.h"

namespace sortie::trainer {

Result<> check_fp8_rows(const config::JobConfig& job, std::int64_t micro_batch_size) {
  if (job.model.precision != "fp8") return {};
  const std::int64_t ranks = std::max<std::int64_t>(job.topology.context_parallel_size, 1);
  const std::int64_t rows = micro_batch_size * job.model.sequence_length / ranks;
  if (rows % ops::kFp8Unit == 0) return {};
  return fail(ErrorCode::config,
              fmt::format("model.precision = \"fp8\": a micro-batch of {} x {} tokens gives each "
                          "rank {} rows to multiply, which has to be a multiple of {}; change "
                          "topology.micro_batch_size or model.sequence_length, or use \"bf16\"",
                          micro_batch_size, job.model.sequence_length, rows, ops::kFp8Unit));
}

Bf16Products bf16_products(const ParameterStore& store) {
  Bf16Products found;
  if (!store.multiplies_in_fp8()) return found;
  for (const auto& parameter : store.parameters()) {
    found.experts = found.experts || parameter->name().contains(".experts.");
    if (!parameter->spec().fp8 || parameter->in_fp8() || parameter->elements() == 0) continue;
    found.add({parameter->name(), parameter->shape()[0], parameter->shape()[1], 1});
  }
  return found;
}

void Bf16Products::add(const Bf16Products& later) {
  if (count == 0) {
    first = later.first;
    rows = later.rows;
    cols = later.cols;
  }
  count += later.count;
  experts = experts || later.experts;
}

std::string Bf16Products::text() const {
  std::string note;
  if (count > 0)
    note = fmt::format("{}{} multipl{} in bf16: rows and columns are not multiples of {} ({} x {})",
                       first, count == 1 ? "" : fmt::format(" and {} more", count - 1),
                       count == 1 ? "ies" : "y", ops::kFp8Unit, rows, cols);
  if (experts) note += (note.empty() ? "" : "; ") + std::string("routed experts multiply in bf16");
  return note.empty() ? note : "precision fp8: " + note;
}

}  // namespace sortie::trainer
