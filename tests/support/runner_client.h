// Drives a real sortie-runner over pipes, as the launcher does: one thread, every wait bounded.
// Output is collected per rank and acknowledged at once unless `credit` says otherwise.
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

/// The program that the ranks of tests run.
inline const std::string kHelper = SORTIE_RANK_HELPER;
/// A copy of it that other users may execute.
const std::string& public_helper();
/// Throws when the process is gone: tests signal what this returns, and kill(0) or kill(-1) would
/// reach themselves.
pid_t parent_of(pid_t pid);
std::optional<pid_t> parent_if_alive(pid_t pid);

/// A job of `ranks` ranks that run `argv`, with short times; world size = ranks.
wire::JobSpec make_job(std::vector<std::string> argv, std::uint32_t ranks = 1);

class RunnerClient {
 public:
  using Duration = std::chrono::milliseconds;
  /// For what has to come: on a busy machine each process may stand still for seconds.
  static constexpr Duration kPatience{30000};

  /// Starts the binary. `environment` replaces the one of the runner when not empty.
  explicit RunnerClient(std::string binary = SORTIE_RUNNER_BINARY,
                        std::vector<std::string> environment = {}, bool unprivileged = false);
  ~RunnerClient();
  RunnerClient(const RunnerClient&) = delete;
  RunnerClient& operator=(const RunnerClient&) = delete;

  void send(const wire::Message& message) { send_bytes(wire::encode(message)); }
  void send_bytes(const std::string& bytes);
  /// The next message that is neither Heartbeat nor (unless `with_output`) Output.
  std::optional<wire::Message> next(Duration limit = kPatience);
  /// The next T; other messages on the way are kept for `seen`.
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
  /// Hello, JobSpec, JobReady.
  std::optional<wire::JobReady> prepare(const wire::JobSpec& job);
  /// prepare, Start.
  bool start(const wire::JobSpec& job);
  /// start, then everything until Finished and a clean exit after Goodbye. True when all of it
  /// came.
  bool run(const wire::JobSpec& job, Duration limit = kPatience);
  /// Reads messages (and answers) until Finished. False after `limit` or at the end of the stream.
  bool wait_finished(Duration limit = kPatience);
  /// Reads messages until so many ranks have said that they run, and written something; the two
  /// come in any order. False after `limit`.
  bool wait_up(std::size_t ranks, Duration limit = kPatience);
  /// Reads messages until `good`, which looks at what has come. False after `limit`.
  bool wait_until(const std::function<bool()>& good, Duration limit = kPatience);
  /// Lets time pass while messages are taken in.
  void pump(Duration time);

  void close_input() { to_runner_.reset(); }
  void close_output() { from_runner_.reset(); }
  void signal(int number) const;
  /// How the process ended; nothing after `limit`.
  std::optional<ProcessStatus> wait_exit(Duration limit = kPatience);

  pid_t pid() const { return pid_; }
  /// Bytes that the runner has written and nobody has read.
  std::size_t unread() const;
  /// What the runner wrote to stderr so far.
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

/// As the test's user: root can make cgroups.
struct AsTestUser {
  static constexpr bool kUnprivileged = false;
};
/// As a user (nobody, when the test is root) who can not, so that the keepers do all the work.
struct WithoutCgroup {
  static constexpr bool kUnprivileged = true;
};

/// A copy of a built program in a place that every user can reach; removed at exit.
std::string public_copy(const std::string& path);

/// Pids of live (not zombie) processes whose environment holds `marker` ("NAME=value").
std::vector<pid_t> processes_with(const std::string& marker);
/// Waits until there are none. False after `limit`; what is left is then killed.
bool all_gone(const std::string& marker, std::chrono::milliseconds limit);
/// What a job has left on this machine (processes, folder, cgroup), "" when nothing. Waits up to
/// `limit`.
std::string remains(const wire::JobSpec& job,
                    std::chrono::milliseconds limit = RunnerClient::kPatience);
/// "NAME" of "env NAME=value" entries that the helper's `show` printed.
std::map<std::string, std::string> shown_environment(const std::string& shown);

}  // namespace sortie::test
