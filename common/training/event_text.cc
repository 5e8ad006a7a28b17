// Events as log lines for the user.
#include <fmt/core.h>

#include <cmath>

#include "common/base/quantity.h"
#include "common/training/event.h"

namespace sortie::training {
namespace {

std::string line_of(const StartEvent& e) {
  const std::string device =
      e.gpu.empty() ? fmt::format("{} ({}), {} x {}", e.cpu, e.isa, counted(e.world_size, "rank"),
                                  counted(e.threads, "thread"))
                    : fmt::format("{} x {}", e.world_size, e.gpu);
  std::string line = fmt::format("training {} with {} parameters, {} on {}, {} x {} tokens a step",
                                 e.architecture, short_number(static_cast<double>(e.parameters)),
                                 e.precision, device, e.global_batch_size, e.sequence_length);
  line += fmt::format("; steps {} to {}", e.step + 1, e.steps);
  if (e.step > e.steps)
    line = fmt::format("nothing to train: step {} is past the last step {}", e.step, e.steps);
  else if (e.step == e.steps)
    line = fmt::format("training is complete: step {} of {}", e.step, e.steps);
  return line + (e.save_dir.empty() ? "; no checkpoints: trainer.save_dir is not set"
                                    : fmt::format("; checkpoints in {}", e.save_dir));
}

std::string line_of(const StepEvent& e) {
  return fmt::format(
      "step {:>6}/{}  loss {:7.4f}  lr {:.2e}  grad {:6.3f}  {:>6} tokens/s  {:>6}FLOP/s  {:5.0f} "
      "ms  ETA {}{}{}",
      e.step, e.steps, e.loss, e.lr, e.grad_norm,
      short_number(std::isfinite(e.mean_tokens_per_s) ? e.mean_tokens_per_s : e.tokens_per_s),
      short_number(e.flops), e.step_ms, short_time(e.eta_s),
      e.dropped_choices ? fmt::format("  dropped {:.1f} %", *e.dropped_choices * 100.0) : "",
      e.skipped ? "  SKIPPED" : "");
}

std::string line_of(const EvalEvent& e) {
  std::string line = fmt::format("step {:>6}  validation loss {:.4f}", e.step, e.loss);
  std::string sets;
  for (const auto& [name, loss] : e.sets)
    sets += fmt::format("{}{} {:.4f}", sets.empty() ? "" : ", ", name, loss);
  if (!sets.empty()) line += fmt::format(" ({})", sets);
  if (std::isfinite(e.best_loss))
    line += e.best_step == e.step
                ? "  (the lowest so far)"
                : fmt::format("  (lowest: {:.4f} at step {})", e.best_loss, e.best_step);
  return line;
}

std::string line_of(const CheckpointEvent& e) {
  const std::string stall = std::isfinite(e.stall_seconds) && e.stall_seconds < e.seconds
                                ? fmt::format(", training blocked for {:.2f} s", e.stall_seconds)
                                : "";
  return fmt::format("step {:>6}  checkpoint {}{}{} ({}B in {:.1f} s{})", e.step,
                     e.best ? "of the lowest validation loss " : "", e.path,
                     e.suspect ? ", suspect" : "", short_number(static_cast<double>(e.bytes)),
                     e.seconds, stall);
}

std::string line_of(const MemoryCheckpointEvent& e) {
  return fmt::format("step {:>6}  checkpoint in memory ({}B a rank, training blocked for {:.2f} s)",
                     e.step, short_number(static_cast<double>(e.bytes)), e.stall_seconds);
}

std::string line_of(const RollbackEvent& e) {
  return fmt::format("step {:>6}  back to step {} ({}): {}; {}", e.from, e.to, e.path, e.reason,
                     e.skipped_samples > 0
                         ? fmt::format("{} samples are left out", e.skipped_samples)
                         : "with the same samples");
}

std::string line_of(const RoundEvent& e) {
  std::string line = fmt::format(
      "step {:>6}  round {} of {}: {}B sent, {}B received, {:.1f} s, {:.1f} s of them waiting",
      e.step, e.round, counted(e.sites, "site"), short_number(static_cast<double>(e.bytes_sent)),
      short_number(static_cast<double>(e.bytes_received)), e.seconds, e.wait_seconds);
  if (std::isfinite(e.utilisation)) line += fmt::format(", {:.0f} % useful", 100 * e.utilisation);
  if (e.contributors < e.sites)
    line += fmt::format(", {} without a change of its own", e.sites - e.contributors);
  if (e.aborted > 0) line += fmt::format(", {} called off before", counted(e.aborted, "exchange"));
  return line;
}

std::string line_of(const FaultEvent& e) {
  return fmt::format("step {:>6}  fault of rank {} on {}: {}", e.step, e.rank, e.host, e.what);
}

std::string line_of(const NoteEvent& e) {
  return e.text;
}

std::string line_of(const ProfileEvent& e) {
  return fmt::format("profile of rank {}{}", e.rank,
                     e.path.empty() ? "" : fmt::format(": {} on {}", e.path, e.host));
}

std::string line_of(const DoneEvent& e) {
  const bool past = e.step > e.steps;
  std::string line = past ? fmt::format("already past step {}: at step {}", e.steps, e.step)
                          : fmt::format("trained to step {} of {}", e.step, e.steps);
  if (std::isfinite(e.loss) && !past)
    line += fmt::format(" in {}, loss {:.4f}", short_time(e.seconds), e.loss);
  if (std::isfinite(e.validation_loss))
    line += fmt::format(", validation loss {:.4f}", e.validation_loss);
  line += fmt::format(", peak memory {}B a rank",
                      short_number(static_cast<double>(e.peak_memory_bytes)));
  if (const auto planned = e.planned_memory.find("total"); planned != e.planned_memory.end())
    line += fmt::format(" (planned: {}B)", short_number(static_cast<double>(planned->second)));
  return line;
}

}  // namespace

std::string event_line(const Event& event) {
  return std::visit([](const auto& value) { return line_of(value); }, event);
}

}  // namespace sortie::training
