// WandbRun: a run of Weights & Biases, written offline; `wandb sync FOLDER` uploads it. The file is
// a log (wandb_log.h) of protobuf messages (wandb_internal.Record).
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
  std::map<std::string, std::string> config;  // key -> JSON text
};

// Each returns a record of the file; `number` is its sequence number.
std::string wandb_header_record(std::int64_t number);
std::string wandb_run_record(std::int64_t number, const std::string& id,
                             const WandbSettings& settings, const std::string& host,
                             double start_time);
/// `values`: name -> JSON text.
std::string wandb_history_record(std::int64_t number, std::int64_t step,
                                 const std::map<std::string, std::string>& values);
std::string wandb_summary_record(std::int64_t number,
                                 const std::map<std::string, std::string>& values);
std::string wandb_exit_record(std::int64_t number, int exit_code);

class WandbRun {
 public:
  /// Opens the run `id` in `folder`/offline-run-.../run-<id>.wandb. If the file exists the run
  /// continues after its last step.
  static Result<WandbRun> open(const std::filesystem::path& folder, const std::string& id,
                               const WandbSettings& settings, double now);

  /// Adds values of a step. The values of one step form a row, which is written at the next step.
  /// Steps that are in the file already are skipped, because a resumed run repeats them. Only the
  /// first kMaxNames different names are kept, so that a rank that invents names can not fill the
  /// memory.
  Result<> add(std::int64_t step, double now, const std::map<std::string, double>& values);
  /// Writes the last row, the summary and the exit code.
  Result<> finish(int exit_code);

  const std::filesystem::path& path() const { return log_.path(); }
  static constexpr std::size_t kMaxNames = 2000, kMaxNameBytes = 256;
  /// Number of values skipped because of too many or too long names.
  std::uint64_t names_left_out() const { return names_left_out_; }

 private:
  explicit WandbRun(WandbLog log) : log_(std::move(log)) {}
  Result<> begin(const std::string& id, const WandbSettings& settings, double now);
  Result<> resume();
  void read_row(std::string_view message);
  Result<> flush();
  bool admits(const std::string& name);

  WandbLog log_;
  std::int64_t number_ = 0;  // sequence number of the last record
  std::int64_t last_step_ = -1;
  double start_time_ = 0.0;
  std::optional<std::int64_t> step_;  // step of row_
  std::map<std::string, std::string> row_, summary_;
  std::set<std::string> names_;  // names of values that were admitted
  std::uint64_t names_left_out_ = 0;
};

}  // namespace sortie::launcher
