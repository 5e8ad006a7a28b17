// RunFolder: what a run leaves behind, on the launcher's side.
//   runs/<id>/  config.toml  plan.json  events.jsonl  metrics.jsonl  logs/ (rank_logs.h)
//   attempts/N/ (attempt_folder.h)
//   profile-rank-N.json  run.json  tensorboard/  wandb/  wandb-run  result.json
//   supervisor-N  control-N.sock  (the last: control/)
//   attempts/N/stacks/rank-R.txt  of ranks that hung
//   sites/NAME/  outer.log  of a run over several sites: a folder like this one for each of them
//
// What is written while the run goes on is queued for a thread of the folder (file_thread.h): no
// call waits for the disk, unless it says so. Memory: ranks' output is bounded by the credit that
// on_written gives back, events of trainers by kMaxQueuedMetrics, and the supervisor says little.
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

namespace sortie::launcher {

class FileThread;
class RunJournal;

class RunFolder {
 public:
  /// Trainers' events are dropped, and counted, while this much waits for the disk.
  static constexpr std::size_t kMaxQueuedMetrics = 64u << 20;

  /// Makes <state>/runs/<new id> (0700) and points <state>/runs/latest at it.
  static Result<RunFolder> create(const std::filesystem::path& state, bool tensorboard);

  /// The folder of a run that goes on under another supervisor, in that attempt.
  static RunFolder open(const std::filesystem::path& path, bool tensorboard,
                        std::uint32_t attempt = 1);

  /// The part of a run that one of its sites has, sites/NAME in the run's folder: made where it is
  /// not there. `id`: by which hosts know that part.
  static Result<RunFolder> open_site(const std::filesystem::path& run, const std::string& site,
                                     const std::string& id, bool tensorboard,
                                     std::uint32_t attempt = 1);

  RunFolder(RunFolder&&) noexcept;
  RunFolder& operator=(RunFolder&&) = delete;
  /// Waits until everything is written.
  ~RunFolder();

  /// From now on nothing is written once `newer` exists: another supervisor owns the files then.
  void obey(std::filesystem::path newer);
  /// Whether that has been seen. Never waits; look_for_newer() makes sure.
  bool superseded() const;
  /// Looks now; `done` runs on the executor of listen(). After the last write the answer can still
  /// take as long as the disk does.
  void look_for_newer(std::function<void(bool newer)> done);

  /// What happens to that which was queued, told on `executor` (an I/O thread) until the next call;
  /// without an executor to nobody.
  struct Listener {
    boost::asio::any_io_executor executor;
    /// Output that is on disk or lost: `pieces` calls of log() with that `owner`.
    std::function<void(std::uint64_t owner, std::uint64_t bytes, std::uint64_t pieces)> on_written;
    /// Something could not be written. Not more than once a minute.
    std::function<void(const Error&)> on_trouble;
  };
  /// Returns a number for stop_listening().
  std::uint64_t listen(Listener listener);
  /// Nothing happens when somebody else listens by now.
  void stop_listening(std::uint64_t number);

  const std::string& id() const { return id_; }  // "20261121-095400-k3f9": sorts by time
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path log_path(std::uint32_t rank, wire::Stream stream) const;

  /// Waits for the disk.
  Result<> write(const std::string& name, const std::string& content);
  /// One line of events.jsonl: {"schema":"sortie/events/1","time":...,"event":NAME, ...fields}.
  void event(JournalEvent event, const nlohmann::ordered_json& fields);
  /// From now on logs are those of this attempt (> 1), whose plan is kept beside them. What was
  /// queued before stays where it belongs.
  void begin_attempt(std::uint32_t attempt, std::string plan_json);
  /// A trainer's event: metrics.jsonl and, for numbers, the trackers.
  void metric(nlohmann::json event);
  /// A part of a rank's profile, from a "profile" event: into profile-rank-N.json, a whole trace
  /// after every part.
  void profile(std::uint32_t rank, nlohmann::json event);
  /// TensorBoard is there from the start, W&B from here on, if the job asks for it.
  void track(const config::JobConfig& job);
  /// Evidence of what went wrong: a file below the run's folder, whole or not at all. `name` is a
  /// relative path of our own making.
  void keep(const std::string& name, std::string content);
  /// Appends bytes of a rank to its log. `owner`: for on_written.
  void log(std::uint32_t rank, wire::Stream stream, std::string bytes, std::uint64_t owner = 0);
  /// How many bytes of a stream were given to log(), by this supervisor or those before it. May
  /// wait for the disk, the first time that it is asked for a stream.
  std::uint64_t stream_bytes(std::uint32_t rank, wire::Stream stream);

  /// The run has ended: tells the trackers, ends the logs. Nothing is to be written after it.
  void finish(int exit_code);
  /// Waits until all that was queued is written, or lost. False after `limit`.
  bool drain(std::chrono::milliseconds limit = std::chrono::hours(1)) const;
  std::size_t queued_bytes() const;

  /// The first write that failed (a full disk, say); the run goes on without what it would have
  /// written.
  std::optional<Error> trouble() const;
  /// Of ranks' output.
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
  bool adopted_ = false;  // there may be logs already
  std::shared_ptr<Delivery> delivery_;
  std::unique_ptr<RunJournal> journal_;
  std::unique_ptr<FileThread> thread_;  // uses the two above
};

/// $XDG_STATE_HOME/sortie, else ~/.local/state/sortie; `log_dir` when not empty.
Result<std::filesystem::path> state_folder(const std::string& log_dir);

/// Seconds since 1970.
double unix_time();

}  // namespace sortie::launcher
