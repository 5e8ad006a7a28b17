// RunFolder: what a run leaves behind, on the launcher's side.
//   runs/<id>/  config.toml  plan.json  events.jsonl  metrics.jsonl  logs/rank-N.{out,err}
//   logs/times  profile-rank-N.json  run.json  tensorboard/  wandb/  wandb-run  result.json
//   supervisor-N  control-N.sock  (the last: control/)
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "common/wire/message.h"
#include "launcher/trackers/trackers.h"

namespace sortie::launcher {

class RunFolder {
 public:
  /// Makes <state>/runs/<new id> (0700) and points <state>/runs/latest at it.
  static Result<RunFolder> create(const std::filesystem::path& state, bool tensorboard);

  /// The folder of a run that goes on under another supervisor.
  static RunFolder open(const std::filesystem::path& path, bool tensorboard);

  /// From now on nothing is written once `newer` exists: another supervisor owns the files then.
  void obey(std::filesystem::path newer) { newer_ = std::move(newer); }
  bool superseded() const;

  const std::string& id() const { return id_; }  // "20261121-095400-k3f9": sorts by time
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path log_path(std::uint32_t rank, wire::Stream stream) const;

  Result<> write(const std::string& name, const std::string& content);
  /// One line of events.jsonl: {"schema":"sortie/events/1","time":...,"event":name, ...fields}.
  void event(const std::string& name, const nlohmann::ordered_json& fields);
  /// A trainer's event: metrics.jsonl and, for numbers, the trackers.
  void metric(const nlohmann::json& event);
  /// A part of a rank's profile, from a "profile" event: into profile-rank-N.json, a whole trace
  /// after every part.
  void profile(std::uint32_t rank, const nlohmann::json& event);
  /// TensorBoard is there from the start, W&B from here on, if the job asks for it.
  void track(const config::JobConfig& job) { trackers_.enable_wandb(job); }
  /// The run has ended; tells the trackers.
  void finish(int exit_code);
  /// Appends bytes of a rank to its log. Once a second and log, logs/times gets a line "MS RANK
  /// STREAM OFFSET": what follows in that log from there on came at that time or later.
  void log(std::uint32_t rank, wire::Stream stream, std::string_view bytes);

  /// The first write that failed (a full disk, say); the run goes on without that file.
  const std::optional<Error>& trouble() const { return trouble_ ? trouble_ : trackers_.trouble(); }

 private:
  void append(Fd& file, const std::filesystem::path& path, std::string_view bytes);

  std::string id_;
  std::filesystem::path path_, newer_;
  mutable bool superseded_ = false;
  struct Progress {
    std::uint64_t bytes = 0;     // in the file
    std::int64_t marked_ms = 0;  // of the last line in logs/times
  };
  Fd events_, metrics_, times_;
  std::map<std::pair<std::uint32_t, wire::Stream>, Fd> logs_;
  std::map<std::pair<std::uint32_t, wire::Stream>, Progress> progress_;
  Trackers trackers_;
  std::optional<Error> trouble_;
};

/// $XDG_STATE_HOME/sortie, else ~/.local/state/sortie; `log_dir` when not empty.
Result<std::filesystem::path> state_folder(const std::string& log_dir);

/// Seconds since 1970.
double unix_time();

}  // namespace sortie::launcher
