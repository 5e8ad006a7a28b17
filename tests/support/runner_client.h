// Drives a real sortie-runner over pipes, as the launcher does. Single-threaded; every wait is
// bounded. Output is collected per rank and acknowledged at once unless `send_credit` is false.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/process_status.h"
#include "common/wire/codec.h"

namespace sortie::test {

/// The program that ranks run in tests.
inline const std::string kHelper = SORTIE_RANK_HELPER;
/// A copy of kHelper that other users may execute.
const std::string& public_helper();
/// Parent of `pid`. Throws if the process is gone: tests send signals to the result, and kill(0) or
/// kill(-1) would reach the test itself.
pid_t parent_of(pid_t pid);
std::optional<pid_t> parent_if_alive(pid_t pid);
/// Children of the main thread of `pid` that are not reaped yet.
std::vector<pid_t> children_of(pid_t pid);

/// A job of `ranks` ranks that run `argv`, with short timeouts; world_size = ranks.
wire::JobSpec make_job(std::vector<std::string> argv, std::uint32_t ranks = 1);

class RunnerClient {
 public:
  using Duration = std::chrono::milliseconds;
  /// Timeout for expected events: on a busy machine each process may stall for seconds.
  static constexpr Duration kPatience{30000};

  /// Starts the binary. `environment` replaces that of the runner if it is not empty.
  /// `unprivileged`: as another user if the test is root.
  explicit RunnerClient(std::string binary = SORTIE_RUNNER_BINARY,
                        std::vector<std::string> environment = {}, bool unprivileged = false);
  ~RunnerClient();
  RunnerClient(const RunnerClient&) = delete;
  RunnerClient& operator=(const RunnerClient&) = delete;

  void send(const wire::Message& message) { send_bytes(wire::encode(message)); }
  void send_bytes(const std::string& bytes);
  /// The next message that is no Heartbeat, Output or RankEvent; these are only collected in the
  /// members below. Returns nullopt after `limit` or at the end of the stream.
  std::optional<wire::Message> next(Duration limit = kPatience);
  /// The next T. Other messages are consumed; the members below keep what they report. Returns
  /// nullopt like next().
  template <class T>
  std::optional<T> expect(Duration limit = kPatience) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    for (;;) {
      const auto left = std::chrono::ceil<Duration>(deadline - std::chrono::steady_clock::now());
      std::optional<wire::Message> message = next(std::max(left, Duration(0)));
      if (!message) return std::nullopt;
      if (auto* wanted = std::get_if<T>(&*message)) return std::move(*wanted);
    }
  }
  /// Exchanges Hello, sends JobSpec and waits for JobReady.
  std::optional<wire::JobReady> prepare(const wire::JobSpec& job);
  /// prepare(), then sends Start.
  bool start(const wire::JobSpec& job);
  /// start(), then reads everything until Finished, sends Goodbye and waits for a clean exit.
  /// Returns true if all of that happened.
  bool run(const wire::JobSpec& job, Duration limit = kPatience);
  /// Reads and answers messages until Finished. Returns false after `limit` or at the end of the
  /// stream.
  bool wait_finished(Duration limit = kPatience);
  /// Reads messages until this many ranks have started and written output, in any order. Returns
  /// false after `limit`.
  bool wait_up(std::size_t ranks, Duration limit = kPatience);
  /// Reads messages until `good` returns true. Returns false after `limit`.
  bool wait_until(const std::function<bool()>& good, Duration limit = kPatience);
  /// Reads messages for `time`.
  void pump(Duration time);

  void close_input() { to_runner_.reset(); }
  void close_output() { from_runner_.reset(); }
  void signal(int number) const;
  /// How the process ended; nullopt after `limit`.
  std::optional<ProcessStatus> wait_exit(Duration limit = kPatience);

  pid_t pid() const { return pid_; }
  /// Bytes that the runner has written and this client has not read.
  std::size_t unread() const;
  /// What the runner has written to stderr so far.
  std::string diagnostics();

  bool send_heartbeats = true;
  bool send_credit = true;
  std::map<std::uint32_t, std::string> out, err;
  std::map<std::uint32_t, std::vector<std::string>> events;
  std::map<std::uint32_t, wire::RankExited> exited;
  std::map<std::uint32_t, pid_t> pids;
  std::map<std::uint32_t, std::chrono::steady_clock::time_point> first_output;
  std::vector<wire::RunnerError> errors;
  std::vector<std::uint32_t> exit_order;
  std::optional<wire::Heartbeat> last_beat;
  std::size_t beats = 0;
  std::map<std::uint32_t, std::size_t> beats_before_exit;
  std::uint64_t output_bytes = 0;  // received, whether acknowledged or not
  std::uint64_t output_after_exit = 0;
  bool finished = false;
  bool end_of_stream = false;

 private:
  bool read_once(std::chrono::steady_clock::time_point deadline);
  void take(wire::Message message);

  pid_t pid_ = -1;
  Fd to_runner_, from_runner_, diagnostics_;
  std::string diagnostics_text_;
  wire::FrameDecoder decoder_;
  std::deque<wire::Message> pending_;
  std::optional<ProcessStatus> status_;
  std::chrono::steady_clock::time_point last_heartbeat_{};
};

/// Runs as the test's user: root can create cgroups.
struct AsTestUser {
  static constexpr bool kUnprivileged = false;
};
/// Runs as a user that can not create cgroups (nobody, if the test is root), so that the keepers do
/// all the work.
struct WithoutCgroup {
  static constexpr bool kUnprivileged = true;
};

/// A copy of a built program in a place that every user can access; removed at exit.
std::string public_copy(const std::string& path);

/// Pids of live (not zombie) processes whose environment contains `marker` ("NAME=value").
std::vector<pid_t> processes_with(const std::string& marker);
/// Waits until there are none. Returns false after `limit`; the remaining ones are then killed.
bool all_gone(const std::string& marker, std::chrono::milliseconds limit);
/// What a job has left on this machine (processes, folder, cgroup, memory); "" if nothing. Waits up
/// to `limit`.
std::string remains(const wire::JobSpec& job,
                    std::chrono::milliseconds limit = RunnerClient::kPatience);
/// Parses the "env NAME=value" entries that the helper's `show` command printed.
std::map<std::string, std::string> shown_environment(const std::string& shown);

}  // namespace sortie::test
