// ExecRun: runs one command on many independent hosts, at most `fanout` commands at a time, each
// host from connect to exit; a failure of one does not stop the others. All state is used on the
// I/O thread.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/asio/alarm.h"
#include "common/asio/task_group.h"
#include "launcher/console/console.h"
#include "launcher/exec/input_source.h"
#include "launcher/exec/sink.h"
#include "launcher/host/host_session.h"

namespace sortie::launcher {

struct ExecJob {
  std::vector<std::string> hosts;
  std::vector<std::string> argv;
  std::size_t fanout = 64;
  std::chrono::milliseconds timeout{0};  // for the command on each host; 0 = none
  std::chrono::milliseconds grace{10000};
  std::string run_id;
};

class ExecRun {
 public:
  struct Parts {
    boost::asio::any_io_executor executor;
    Transport& transport;
    const RunnerBinary& binary;
    Console& console;
    std::vector<ExecSink*> sinks;
    std::shared_ptr<InputSource> input;  // nullptr: stdin of the commands is /dev/null
    // Time that a runner may need beyond the grace: killing, reaping, delivering the last output.
    std::chrono::milliseconds stop_slack{10000};
  };

  /// All references must outlive this object.
  ExecRun(Parts parts, const ExecJob& job, const config::RunnerConfig& runner);

  /// Returns when every host is done and its runner has exited (or had two seconds to do so).
  boost::asio::awaitable<void> run();

  /// For SIGINT, SIGTERM or SIGHUP: the first call stops all commands with the grace, the next one
  /// kills them immediately.
  void interrupt(int signal_number);

  const std::vector<HostOutcome>& outcomes() const { return outcomes_; }
  /// 128 + signal of the first interrupt(), if any.
  std::optional<int> interrupted() const { return interrupted_; }
  /// Set if stdin could not be read to its end.
  const std::optional<Error>& input_error() const { return input_error_; }
  /// Hosts on which processes left behind by the command were killed.
  const std::vector<std::string>& cleaned() const { return cleaned_; }

 private:
  /// Bytes of stdin that may be in flight to a host.
  static constexpr std::uint32_t kInputWindow = 256u << 10;

  /// queued: the job is sent, and its command is not started before there is a place for it.
  enum class Phase { connecting, queued, preparing, running, ended };
  /// A host that is currently served.
  struct Active {
    explicit Active(const boost::asio::any_io_executor& executor)
        : timer(executor), answer_due(executor) {}
    std::shared_ptr<HostSession> session;
    boost::asio::steady_timer timer;
    Alarm answer_due;
    Phase phase = Phase::connecting;
    std::chrono::steady_clock::time_point begun, timeout_at, give_up_at;
    bool placed = false;  // counts towards the fan-out
    bool timed_out = false, told_to_stop = false;
    std::optional<wire::RankExited> exited;
    std::string spawn_error;
    std::uint64_t unacknowledged = 0;
    std::uint64_t input_offset = 0, input_room = 0;
    bool input_done = false, owed = false;
  };

  boost::asio::awaitable<void> worker();
  boost::asio::awaitable<void> serve(std::size_t index);
  boost::asio::awaitable<void> let_go(std::size_t index);
  boost::asio::awaitable<void> tick();
  wire::JobSpec job_spec(std::size_t index) const;
  void take_place(Active& active);
  void give_place();
  boost::asio::awaitable<void> wait_for_place(std::size_t index);
  void listen(std::size_t index);
  void begin(std::size_t index);
  void on_message(std::size_t index, wire::Message message);
  void on_output(std::size_t index, const wire::Output& output);
  void on_finished(std::size_t index);
  void on_lost(std::size_t index, Error error);
  void on_deadline(std::size_t index);
  void give_up(std::size_t index, Error error);
  void acknowledge(Active& active);
  bool congested() const;
  void stop(Active& active, std::chrono::milliseconds grace, const std::string& reason);
  void stop_all();
  void finish(std::size_t index, Outcome outcome);
  bool is_done(std::size_t index) const;
  void leave_when_done();

  // exec_input.cc
  void start_input();
  void send_input(std::size_t index);
  void send_input_to_all();
  bool wants_input() const;
  void forget_input();
  void on_input_error(Error error);

  Parts parts_;
  const ExecJob& job_;
  const config::RunnerConfig& runner_;
  std::uint32_t output_window_;
  std::vector<HostOutcome> outcomes_;
  std::vector<std::unique_ptr<Active>> active_;  // by host; nullptr if not (or no longer) served
  std::size_t next_ = 0, done_ = 0, failed_ = 0, open_ = 0, credits_ = 0;
  std::size_t placed_ = 0;         // hosts whose commands run or are about to; at most fanout
  std::deque<std::size_t> queue_;  // hosts that wait for a place, the first one first
  std::vector<std::size_t> owed_;  // hosts whose output waits for credit
  std::vector<std::string> cleaned_;
  std::optional<int> interrupted_;
  std::optional<Error> input_error_;
  bool stopping_ = false, at_once_ = false;
  std::chrono::steady_clock::time_point begun_;
  TaskGroup tasks_;  // workers, and let_go() of finished hosts
  boost::asio::steady_timer tick_;
};

}  // namespace sortie::launcher
