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

std::string fp8_note(const ParameterStore& store) {
  if (!store.multiplies_in_fp8()) return {};
  const Parameter* example = nullptr;
  std::int64_t count = 0;
  bool experts = false;
  for (const auto& parameter : store.parameters()) {
    experts = experts || parameter->name().contains(".experts.");
    if (!parameter->spec().fp8 || parameter->in_fp8() || parameter->elements() == 0) continue;
    if (example == nullptr) example = parameter.get();
    ++count;
  }
  std::string note;
  if (count > 0)
    note = fmt::format("{}{} multipl{} in bf16: rows and columns are not multiples of {} ({} x {})",
                       example->name(), count == 1 ? "" : fmt::format(" and {} more", count - 1),
                       count == 1 ? "ies" : "y", ops::kFp8Unit, example->shape()[0],
                       example->shape()[1]);
  if (experts) note += (note.empty() ? "" : "; ") + std::string("routed experts multiply in bf16");
  return note.empty() ? note : "precision fp8: " + note;
}

}  // namespace sortie::trainer
