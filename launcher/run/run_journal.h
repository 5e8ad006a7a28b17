// RunJournal: what is written to a run folder while the run goes on: events.jsonl, metrics.jsonl,
// the ranks' logs, the trackers' files. Used by the folder's FileThread alone, but for what says
// otherwise. A file that can not be written costs the run nothing but what would be in it.
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

class RunJournal {
 public:
  RunJournal(const std::filesystem::path& run, bool tensorboard, std::uint32_t attempt);

  /// From now on nothing is written once `newer` exists: another supervisor owns the files then.
  void obey(std::filesystem::path newer) { newer_ = std::move(newer); }
  /// Looks whether it does.
  bool look_for_newer();
  /// What the last look has found. From any thread.
  bool superseded() const { return superseded_; }

  /// Runs on the thread when something could not be written; again when that happens after a minute
  /// without.
  void set_on_trouble(std::function<void(const Error&)> on_trouble) {
    on_trouble_ = std::move(on_trouble);
  }
  /// The first thing that could not be written. From any thread.
  std::optional<Error> trouble() const;
  /// Of ranks' output that could not be written. From any thread.
  std::uint64_t lost_bytes() const { return lost_bytes_; }

  void event(std::string_view line);
  /// From now on logs are those of this attempt, in a folder of its own with its plan.
  void begin_attempt(std::uint32_t attempt, const std::string& plan_json);
  void metric(const nlohmann::json& event, double now);
  /// Appends events of a Chrome trace to profile-rank-N.json, which is a whole trace after each
  /// call.
  void profile(std::uint32_t rank, const nlohmann::json& trace_events);
  /// A file below the run's folder, with the folders above it.
  void keep(const std::string& name, const std::string& content);
  void log(StreamId id, std::string_view bytes);
  void begin_log_at(StreamId id, std::uint64_t file_offset) { logs_->begin_at(id, file_offset); }
  void track(const config::JobConfig& job);
  /// Tries again to write what a full disk has not taken. Once a minute it also leaves a sign of
  /// life, the time of the folder logs: ranks may be silent for days, and whoever finds the run
  /// without its supervisor has to know since when (control/held_ranks.h).
  void flush();
  /// The run has ended.
  void finish(int exit_code);

 private:
  void note(const Result<>& written);
  void sign();
  Result<> append_trace(const std::filesystem::path& path, const std::string& entries);
  /// Libraries throw; whatever it is, the run goes on.
  void guarded(const std::function<void()>& work);

  std::filesystem::path run_, newer_;
  std::atomic<bool> superseded_ = false;
  LineFile events_, metrics_;
  std::unique_ptr<RankLogs> logs_;  // of the attempt
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
