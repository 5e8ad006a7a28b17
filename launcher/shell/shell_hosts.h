// ShellHosts: the hosts of a `sortie shell`, each with one shell that lives as long as the prompt.
// A line is sent to some of them and has ended when it has ended on each. Used on the I/O thread
// only.
#pragma once

#include <array>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/asio/task_group.h"
#include "launcher/exec/sink.h"
#include "launcher/host/host_session.h"
#include "launcher/shell/marks.h"
#include "launcher/shell/terminal_errors.h"

namespace sortie::launcher {

class ShellHosts {
 public:
  struct Parts {
    boost::asio::any_io_executor executor;
    Transport& transport;
    const RunnerBinary& binary;
    /// A host was dropped: its shell could not be started or has ended, or the host was lost.
    /// `in_line`: it ran a line, whose outcome reports the same.
    std::function<void(const std::string& host, const Outcome& outcome, bool in_line)> on_gone;
    /// Output between two lines, from a background job.
    std::function<void(std::size_t index, const std::string& host, std::string_view bytes)>
        on_stray;
    /// Returns true while the terminal is too slow: hosts then get no credit for more output. Empty
    /// = never.
    std::function<bool()> congested = {};
  };

  /// All references must outlive the object. `run_id` names the run folders on the hosts.
  ShellHosts(Parts parts, const std::vector<std::string>& hosts, const config::RunnerConfig& runner,
             std::string run_id);

  /// Adds hosts, to be connected by connect(). Returns the index of the first; the others follow. A
  /// dropped host may be added again and gets a new index.
  std::size_t add(const std::vector<std::string>& hosts);
  /// Connects the hosts added since the last call. Completes when each has a shell or was dropped.
  /// No line may run meanwhile.
  boost::asio::awaitable<void> connect();

  std::size_t size() const { return hosts_.size(); }
  const std::string& name(std::size_t index) const { return hosts_[index]->name; }
  bool lives(std::size_t index) const { return hosts_[index]->phase != Phase::gone; }
  /// Why the host was dropped.
  const Outcome& end_of(std::size_t index) const { return hosts_[index]->end; }
  std::vector<std::string> living() const;

  /// Runs the line on the live hosts of `which`. Returns the outcomes in the order of `which`.
  boost::asio::awaitable<std::vector<HostOutcome>> run(std::string line,
                                                       std::vector<std::size_t> which,
                                                       ExecSink& sink);
  /// Whether a line runs.
  bool busy() const { return running_ > 0; }
  /// Hosts on which the line runs.
  std::vector<std::string> running() const;
  /// Handles Ctrl-C: sends SIGINT to the processes of the line, SIGTERM at the second call. From
  /// the third call on, ends the shells of the hosts where the line still runs.
  void interrupt();
  /// Gives the credit that was held back while `congested`. Must be called periodically.
  void give_credit();
  /// Number of interrupts of the running line.
  int interrupts() const { return interrupts_; }
  /// Drops every host that is connecting or runs a line. A running connect() completes.
  void abandon();
  /// Ends all shells. Completes when their runners have exited, or after 2.5 s.
  boost::asio::awaitable<void> leave();

 private:
  /// Maximum number of bytes in flight to and from a shell.
  static constexpr std::uint32_t kInputWindow = 256u << 10, kOutputWindow = 256u << 10;

  enum class Phase { connecting, ready, gone };
  struct Host {
    std::string name;
    Phase phase = Phase::connecting;
    std::shared_ptr<HostSession> session;
    std::array<MarkReader, 2> readers;  // out, err
    TerminalErrors terminal_errors;     // filters the text of err
    std::array<bool, 2> done = {true, true};
    bool busy = false, begun = false;
    bool opened = false;    // start is over: stray output is shown
    int status = 0;         // exit status of the last line
    std::string_view wish;  // order to send when the line has begun
    std::string pending;    // bytes for stdin that exceed `room`
    std::uint64_t room = 0, unacknowledged = 0;
    std::optional<wire::RankExited> exited;
    std::string spawn_error;
    bool ended = false;  // the connection has ended
    Outcome end;
  };

  boost::asio::awaitable<void> reach(std::size_t index);
  wire::JobSpec shell_spec(std::size_t index) const;
  void start_line(std::size_t index, const std::string& line);
  void on_message(std::size_t index, wire::Message message);
  void on_output(std::size_t index, const wire::Output& output);
  void on_piece(std::size_t index, wire::Stream stream, const MarkReader::Piece& piece);
  void show(std::size_t index, wire::Stream stream, std::string_view bytes);
  void on_finished(std::size_t index);
  void end_line(std::size_t index, Outcome outcome);
  void give_up(std::size_t index, Error error);
  void leave_out(std::size_t index, Outcome outcome);
  void give_credit_to(Host& host);
  void order(Host& host, std::string_view order);
  void write(Host& host, std::string_view bytes);

  Parts parts_;
  const config::RunnerConfig& runner_;
  const std::string run_id_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::unique_ptr<TaskGroup> tasks_;  // used by connect()
  boost::asio::steady_timer changed_;
  ExecSink* sink_ = nullptr;  // sink of the running line
  std::vector<HostOutcome> outcomes_;
  std::vector<std::size_t> which_;
  std::size_t running_ = 0, order_ = 0;
  int interrupts_ = 0;
  std::size_t connected_ = 0;  // number of hosts that connect() has handled
  bool leaving_ = false;
};

}  // namespace sortie::launcher
