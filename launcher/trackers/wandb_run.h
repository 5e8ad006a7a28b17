// WandbRun: one run for Weights & Biases, written offline; `wandb sync FOLDER` uploads it. The file
// is a log (wandb_log.h) of protobuf messages (wandb_internal.Record).
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>

#include "launcher/trackers/wandb_log.h"

namespace sortie::launcher {

struct WandbSettings {
  std::string project, group, name;
  std::vector<std::string> tags;
  std::map<std::string, std::string> config;  // key to JSON text
};

// Records, by number; each is a whole file's message.
std::string wandb_header_record(std::int64_t number);
std::string wandb_run_record(std::int64_t number, const std::string& id,
                             const WandbSettings& settings, const std::string& host,
                             double start_time);
/// `values` to JSON text.
std::string wandb_history_record(std::int64_t number, std::int64_t step,
                                 const std::map<std::string, std::string>& values);
std::string wandb_summary_record(std::int64_t number,
                                 const std::map<std::string, std::string>& values);
std::string wandb_exit_record(std::int64_t number, int exit_code);

class WandbRun {
 public:
  /// The run `id` in `folder`/offline-run-.../run-<id>.wandb. Where that file is there already, the
  /// run goes on behind its last step.
  static Result<WandbRun> open(const std::filesystem::path& folder, const std::string& id,
                               const WandbSettings& settings, double now);

  /// Values of a step: those of one step are one row, written when the next step comes. Steps that
  /// the file has are left out: a resumed run repeats them. Of all names that a run uses the first
  /// kMaxNames are kept: a rank that makes up new ones fills no memory.
  Result<> add(std::int64_t step, double now, const std::map<std::string, double>& values);
  /// The last row, the summary and the exit code.
  Result<> finish(int exit_code);

  const std::filesystem::path& path() const { return log_.path(); }
  static constexpr std::size_t kMaxNames = 2000, kMaxNameBytes = 256;
  /// Names that were left out since, because there were too many or they were too long.
  std::uint64_t names_left_out() const { return names_left_out_; }

 private:
  explicit WandbRun(WandbLog log) : log_(std::move(log)) {}
  Result<> begin(const std::string& id, const WandbSettings& settings, double now);
  Result<> resume();
  Result<> flush();
  bool admits(const std::string& name);

  WandbLog log_;
  std::int64_t number_ = 0;  // of the last record
  std::int64_t last_step_ = -1;
  double start_time_ = 0.0;
  std::optional<std::int64_t> step_;  // of the row
  std::map<std::string, std::string> row_, summary_;
  std::set<std::string> names_;  // of values, that rows may have
  std::uint64_t names_left_out_ = 0;
};

}  // namespace sortie::launcher
