#include "trainer/loop/run_report.h"

#include <fmt/core.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "common/base/check.h"
#include "common/model/parameters.h"

namespace sortie::trainer {

namespace {

nlohmann::json as_json(const model::MemoryUse& memory) {
  nlohmann::json json = {{"total", memory.total()}};
  for (const auto& [name, bytes] : memory.parts()) json[name] = bytes;
  return json;
}

}  // namespace

void RunReport::note(const std::string& text) {
  if (!silent()) events_.send({{"type", "note"}, {"text", text}});
}

void RunReport::loaded(const LoadedCheckpoint& checkpoint) {
  if (checkpoint.weights_only)
    return note(fmt::format("weights from {}, step 0", checkpoint.path.string()));
  note(fmt::format("resumed from {} at step {}", checkpoint.path.string(),
                   checkpoint.progress.step));
  if (!checkpoint.differences.empty())
    note("losses will not be bit for bit those of an uninterrupted run: " + checkpoint.differences);
}

void RunReport::start(const BitFacts& facts, const CpuFacts& cpu, const TrainingProgress& progress,
                      const std::string& first_run) {
  if (silent()) return;
  const auto facts_of_model = model::model_facts(job_);
  SORTIE_CHECK(facts_of_model.has_value(), "{}", facts_of_model.error().message);  // start() told
  flops_per_token_ = model::flops_per_token(job_.model, *facts_of_model);
  const DType dtype = facts.precision == dtype_name(DType::bf16) ? DType::bf16 : DType::f32;
  const auto memory =
      plan_memory(job_, batch_.micro_batch_size, rank_.world_size, dtype, rank_.threads, cpu);
  SORTIE_CHECK(memory.has_value(), "{}", memory.error().message);
  planned_ = *memory;
  nlohmann::json event = {{"type", "start"},
                          {"architecture", job_.model.architecture},
                          {"parameters", model::count(facts_of_model->parameters).total},
                          {"flops_per_token", flops_per_token_},
                          {"planned_memory", as_json(planned_)},
                          {"precision", facts.precision},
                          {"isa", facts.isa},
                          {"cpu", cpu.model},
                          {"threads", rank_.threads},
                          {"world_size", rank_.world_size},
                          {"global_batch_size", batch_.global_batch_size},
                          {"gradient_accumulation_steps", batch_.gradient_accumulation_steps},
                          {"sequence_length", job_.model.sequence_length},
                          {"step", progress.step},
                          {"steps", job_.trainer.train_iterations}};
  if (!first_run.empty()) event["first_run"] = first_run;
  events_.send(event);
  if (job_.model.precision == "auto" && facts.precision == "f32")
    note(fmt::format("precision auto: f32, because this CPU ({}) has no bf16 products", facts.isa));
}

void RunReport::step(const StepReport& report, const TrainingProgress& progress, double seconds,
                     double trained_seconds) {
  if (silent()) return;
  last_loss_ = report.loss;
  if (report.skipped)
    note(fmt::format("step {}: {}, step skipped ({} in a row)", report.step, report.skip_reason,
                     progress.consecutive_skips));
  const std::int64_t steps = job_.trainer.train_iterations;
  if (report.step % job_.logger.log_interval != 0 && report.step != 1 && report.step < steps)
    return;
  const auto tokens = static_cast<double>(report.tokens);
  double eta = seconds * static_cast<double>(steps - report.step);
  const double limit = std::chrono::duration<double>(job_.trainer.train_duration).count();
  if (limit > 0) eta = std::min(eta, std::max(0.0, limit - trained_seconds));
  nlohmann::json event = {
      {"type", "step"},
      {"step", report.step},
      {"steps", steps},
      {"loss", report.loss},
      {"lr", report.learning_rate},
      {"grad_norm", report.grad_norm},
      {"tokens_per_s", tokens / seconds},
      {"flops", flops_per_token_ * tokens / seconds},
      {"step_ms", seconds * 1e3},
      {"data_wait_ms", report.data_seconds * 1e3},
      {"eta_s", eta},
      {"skipped", report.skipped},
      {"consumed_tokens", progress.consumed_samples * job_.model.sequence_length}};
  if (report.balance_loss) event["balance_loss"] = *report.balance_loss;
  if (report.mtp_loss) event["mtp_loss"] = *report.mtp_loss;
  if (batch_.rampup_share > 0) event["batch_size"] = report.samples;
  events_.send(event);
}

void RunReport::evaluation(std::int64_t step, double loss) {
  if (!silent()) events_.send({{"type", "eval"}, {"step", step}, {"loss", loss}});
}

void RunReport::checkpoint(std::int64_t step, const SavedCheckpoint& saved, bool best) {
  if (!silent())
    events_.send({{"type", "checkpoint"},
                  {"step", step},
                  {"path", saved.path.string()},
                  {"bytes", saved.bytes},
                  {"seconds", saved.seconds},
                  {"best", best}});
}

void RunReport::done(const TrainingProgress& progress, double validation_loss,
                     double trained_seconds, const model::MemoryUse& memory) {
  if (silent()) return;
  events_.send({{"type", "done"},
                {"step", progress.step},
                {"loss", last_loss_},
                {"validation_loss", validation_loss},
                {"seconds", trained_seconds},
                {"peak_memory_bytes", memory.total()},
                {"memory", as_json(memory)},
                {"planned_memory", as_json(planned_)},
                {"events_dropped", events_.dropped()}});
}

}  // namespace sortie::trainer
