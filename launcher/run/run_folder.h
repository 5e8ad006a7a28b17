// RunFolder: the files of a run on the launcher's machine.
//   runs/<id>/  config.toml  plan.json  events.jsonl  metrics.jsonl  logs/ (rank_logs.h)
//   attempts/N/ (attempt_folder.h)
//   profile-rank-N.json  run.json  tensorboard/  wandb/  wandb-run  result.json
//   supervisor-N  control-N.sock  (the last: control/)
//   attempts/N/stacks/rank-R.txt  stacks of ranks that hung
//   sites/NAME/  outer.log  in a run over several sites: a folder like this one for each site
//
// Writes during the run are queued for a thread of the folder (file_thread.h). No call blocks on
// the disk unless its comment says so. Memory: the output of ranks is bounded by the credit that
// on_written returns, events of trainers by kMaxQueuedMetrics; the supervisor writes little.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "common/base/result.h"
#include "common/config/schema.h"
#include "launcher/run/rank_logs.h"
#include "launcher/view/journal_event.h"

namespace sortie {
class FileThread;
}

namespace sortie::launcher {

class RunJournal;

class RunFolder {
 public:
  /// Events of trainers are dropped and counted while more than this many bytes are queued.
  static constexpr std::size_t kMaxQueuedMetrics = 64u << 20;

  /// Creates <state>/runs/<new id> (0700) and points <state>/runs/latest at it. Blocks on the disk.
  static Result<RunFolder> create(const std::filesystem::path& state, bool tensorboard);

  /// Removes the folder of a run that could not start, so that no command lists it; `latest` then
  /// points at the newest other run. Errors are ignored. No queued write may be pending. Blocks on
  /// the disk.
  void discard();

  /// Opens the folder of a run that another supervisor started, at attempt `attempt`.
  static RunFolder open(const std::filesystem::path& path, bool tensorboard,
                        std::uint32_t attempt = 1);

  /// Opens the folder of one site, sites/NAME in the run folder, and creates it if it does not
  /// exist. `id`: the run id under which hosts know the part of this site. Blocks on the disk.
  static Result<RunFolder> open_site(const std::filesystem::path& run, const std::string& site,
                                     const std::string& id, bool tensorboard,
                                     std::uint32_t attempt = 1);

  RunFolder(RunFolder&&) noexcept;
  RunFolder& operator=(RunFolder&&) = delete;
  /// Blocks until all queued writes are done.
  ~RunFolder();

  /// From now on queued writes are dropped once the file `newer` exists: then another supervisor
  /// owns the folder.
  void obey(std::filesystem::path newer);
  /// Returns whether `newer` has been seen. Never blocks; look_for_newer() checks the disk.
  bool superseded() const;
  /// Checks for `newer` now; `done` runs on the executor of listen(). The check is queued after all
  /// earlier writes, so it can take as long as the disk does.
  void look_for_newer(std::function<void(bool newer)> done);

  /// Calls `done` on the folder's thread once all earlier writes are done or lost. It must not
  /// throw or block.
  void when_written(std::function<void()> done);

  /// Callbacks about queued writes. They run on `executor` (an I/O thread) until the next call of
  /// listen(). With an empty executor no callback runs.
  struct Listener {
    boost::asio::any_io_executor executor;
    /// Output that was written or lost: `bytes` of `pieces` calls of log() with that `owner`.
    std::function<void(std::uint64_t owner, std::uint64_t bytes, std::uint64_t pieces)> on_written;
    /// A write failed. Called again only after a minute without failures.
    std::function<void(const Error&)> on_trouble;
  };
  /// Replaces the listener. Returns a number for stop_listening().
  std::uint64_t listen(Listener listener);
  /// Removes the listener. No-op if another listener has replaced it.
  void stop_listening(std::uint64_t number);

  const std::string& id() const { return id_; }  // "20261121-095400-k3f9": sorts by time
  const std::filesystem::path& path() const { return path_; }

  /// Replaces a file of the folder atomically. Blocks on the disk.
  Result<> write(const std::string& name, const std::string& content);
  /// Appends a line to events.jsonl: {"schema":"sortie/events/1","time":...,"event":NAME,
  /// ...fields}.
  void event(JournalEvent event, const nlohmann::ordered_json& fields);
  /// From now on log() writes to the logs of `attempt` (> 1), whose plan is stored next to them.
  /// Output queued earlier still goes to the logs of the earlier attempt.
  void begin_attempt(std::uint32_t attempt, std::string plan_json);
  /// Records an event of a trainer in metrics.jsonl and sends its numbers to the trackers. Dropped
  /// and counted beyond kMaxQueuedMetrics.
  void metric(nlohmann::json event);
  /// Appends the part of a rank's profile in a "profile" event to profile-rank-N.json, which is a
  /// complete trace after each part.
  void profile(std::uint32_t rank, nlohmann::json event);
  /// Starts the W&B tracker if the job enables it. TensorBoard is active from the start.
  void track(const config::JobConfig& job);
  /// Writes a file below the run folder atomically, as evidence of a failure. `name` is a trusted
  /// relative path.
  void keep(const std::string& name, std::string content);
  /// Appends output of a rank to its log. `owner` is passed to on_written.
  void log(std::uint32_t rank, wire::Stream stream, std::string bytes, std::uint64_t owner = 0);
  /// Bytes of a stream that this supervisor and earlier ones passed to log(). The first call for a
  /// stream may block on the disk.
  std::uint64_t stream_bytes(std::uint32_t rank, wire::Stream stream);

  /// Finishes trackers and logs at the end of the run. Nothing may be written afterwards.
  void finish(int exit_code);
  /// Blocks until all queued data is written or lost. Returns false after `limit`.
  bool drain(std::chrono::milliseconds limit = std::chrono::hours(1)) const;
  std::size_t queued_bytes() const;

  /// The error of the first failed write (a full disk, say), if any. The run continues without that
  /// data.
  std::optional<Error> trouble() const;
  /// Bytes of the output of ranks that were lost.
  std::uint64_t lost_bytes() const;

 private:
  struct Delivery;
  RunFolder();
  void start(bool tensorboard);

  std::string id_;
  std::filesystem::path path_;
  std::uint32_t attempt_ = 1;
  std::map<StreamId, std::uint64_t> stream_bytes_;
  std::uint64_t dropped_metrics_ = 0;
  bool adopted_ = false;  // logs may exist already
  std::shared_ptr<Delivery> delivery_;
  std::unique_ptr<RunJournal> journal_;
  std::unique_ptr<FileThread> thread_;  // uses the two above
};

/// $XDG_STATE_HOME/sortie, else ~/.local/state/sortie; `log_dir` when not empty.
Result<std::filesystem::path> state_folder(const std::string& log_dir);

/// Seconds since 1970.
double unix_time();

}  // namespace sortie::launcher
