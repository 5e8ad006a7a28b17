// RunJournal: writes the files of a run folder during the run: events.jsonl, metrics.jsonl, the
// logs of ranks, the files of trackers. Only the FileThread of the folder may use it, except where
// a comment says otherwise. If a file can not be written the run continues without that data.
#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "common/base/result.h"
#include "launcher/run/line_file.h"
#include "launcher/run/rank_logs.h"
#include "launcher/trackers/trackers.h"

namespace sortie::launcher {

/// Interval of the signs of life of a supervisor in the files of its run.
inline constexpr std::chrono::minutes kSignEvery{1};

class RunJournal {
 public:
  RunJournal(const std::filesystem::path& run, bool tensorboard, std::uint32_t attempt);

  /// From now on nothing is written once the file `newer` exists: then another supervisor owns the
  /// folder.
  void obey(std::filesystem::path newer) { newer_ = std::move(newer); }
  /// Checks whether `newer` exists.
  bool look_for_newer();
  /// Result of the last check. Thread-safe.
  bool superseded() const { return superseded_; }

  /// Sets a callback that runs on the FileThread when a write fails, and again for a failure after
  /// a minute without failures.
  void set_on_trouble(std::function<void(const Error&)> on_trouble) {
    on_trouble_ = std::move(on_trouble);
  }
  /// The error of the first failed write, if any. Thread-safe.
  std::optional<Error> trouble() const;
  /// Bytes of the output of ranks that could not be written. Thread-safe.
  std::uint64_t lost_bytes() const { return lost_bytes_; }

  void event(std::string_view line);
  /// From now on logs are those of `attempt`, in a separate folder with its plan.
  void begin_attempt(std::uint32_t attempt, const std::string& plan_json);
  void metric(const nlohmann::json& event, double now);
  /// Appends events of a Chrome trace to profile-rank-N.json, which is a complete trace after each
  /// call.
  void profile(std::uint32_t rank, const nlohmann::json& trace_events);
  /// Writes a file below the run folder and creates its parent folders.
  void keep(const std::string& name, const std::string& content);
  void log(StreamId id, std::string_view bytes);
  void begin_log_at(StreamId id, std::uint64_t file_offset) { logs_->begin_at(id, file_offset); }
  void track(const config::JobConfig& job);
  /// Retries writes that a full disk has rejected. Once a minute it also updates the mtime of the
  /// folder logs as a sign of life: ranks may be silent for days, and a reader that finds the run
  /// without its supervisor must know since when (control/held_ranks.h).
  void flush();
  /// Finishes logs and trackers at the end of the run.
  void finish(int exit_code);

 private:
  void note(const Result<>& written);
  void sign();
  Result<> append_trace(const std::filesystem::path& path, const std::string& entries);
  /// Runs `work`, which may call libraries that throw. An exception counts as a failed write.
  void guarded(const std::function<void()>& work);

  std::filesystem::path run_, newer_;
  std::atomic<bool> superseded_ = false;
  LineFile events_, metrics_;
  std::unique_ptr<RankLogs> logs_;  // of the current attempt
  std::uint64_t lost_before_ = 0;   // bytes, in earlier attempts
  Trackers trackers_;
  bool tracker_trouble_told_ = false;
  std::atomic<std::uint64_t> lost_bytes_ = 0;
  std::function<void(const Error&)> on_trouble_;
  std::optional<std::chrono::steady_clock::time_point> last_trouble_, last_sign_;
  mutable std::mutex mutex_;
  std::optional<Error> trouble_;  // under the mutex
};

}  // namespace sortie::launcher
