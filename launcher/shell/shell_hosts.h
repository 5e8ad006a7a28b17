// ShellHosts: the hosts of a `sortie shell`, each with one shell that lives as long as the prompt.
// A line goes to some of them and is over when it is over on each. On the I/O thread.
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

namespace sortie::launcher {

class ShellHosts {
 public:
  struct Parts {
    boost::asio::any_io_executor executor;
    Transport& transport;
    const RunnerBinary& binary;
    /// A host is out: its shell could not be started, has ended, or the host went away. `in_line`:
    /// while it ran a line, whose outcome says the same.
    std::function<void(const std::string& host, const Outcome& outcome, bool in_line)> on_gone;
    /// Output between two lines, of a job in the background.
    std::function<void(std::size_t index, const std::string& host, std::string_view bytes)>
        on_stray;
    /// What is shown waits for the terminal: hosts get no credit for more output. Empty: never.
    std::function<bool()> congested = {};
  };

  /// All references must outlive the object. `run_id` names the run folders on the hosts.
  ShellHosts(Parts parts, const std::vector<std::string>& hosts, const config::RunnerConfig& runner,
             std::string run_id);

  /// More hosts, which are to be connected; the number of the first, the others follow. A host
  /// that is out may be named again: it gets a new number.
  std::size_t add(const std::vector<std::string>& hosts);
  /// Returns when each of those that were added since the last time has a shell, or is out. No line
  /// runs meanwhile.
  boost::asio::awaitable<void> connect();

  std::size_t size() const { return hosts_.size(); }
  const std::string& name(std::size_t index) const { return hosts_[index]->name; }
  bool lives(std::size_t index) const { return hosts_[index]->phase != Phase::gone; }
  /// Why a host is out.
  const Outcome& end_of(std::size_t index) const { return hosts_[index]->end; }
  std::vector<std::string> living() const;

  /// Runs the line on those of `which` that live. How it ended on each, in their order.
  boost::asio::awaitable<std::vector<HostOutcome>> run(std::string line,
                                                       std::vector<std::size_t> which,
                                                       ExecSink& sink);
  /// A line runs.
  bool busy() const { return running_ > 0; }
  /// Hosts on which it runs.
  std::vector<std::string> running() const;
  /// Ctrl-C: INT to what the line runs; the second time TERM; from the third on the shells of hosts
  /// where it still runs are ended.
  void interrupt();
  /// Credit for output that was held back while `congested`; to be called now and then.
  void give_credit();
  /// How often the running line was interrupted.
  int interrupts() const { return interrupts_; }
  /// Ends every host that is not ready or has a line running; connect() returns.
  void abandon();
  /// Ends all shells. Returns when their runners are gone, or had two seconds for it.
  boost::asio::awaitable<void> leave();

 private:
  /// Bytes that may be on their way to and from a shell.
  static constexpr std::uint32_t kInputWindow = 256u << 10, kOutputWindow = 256u << 10;

  enum class Phase { connecting, ready, gone };
  struct Host {
    std::string name;
    Phase phase = Phase::connecting;
    std::shared_ptr<HostSession> session;
    std::array<MarkReader, 2> readers;  // out, err
    std::array<bool, 2> done = {true, true};
    bool busy = false, begun = false;
    bool opened = false;    // what it says from here on is not of its start
    int status = 0;         // of the last line
    std::string_view wish;  // an order for a line that has not begun
    std::string pending;    // for stdin, beyond its room
    std::uint64_t room = 0, unacknowledged = 0;
    std::optional<wire::RankExited> exited;
    std::string spawn_error;
    bool ended = false;  // its runner has said so
    Outcome end;
  };

  boost::asio::awaitable<void> reach(std::size_t index);
  wire::JobSpec shell_spec(std::size_t index) const;
  void start_line(std::size_t index, const std::string& line);
  void on_message(std::size_t index, wire::Message message);
  void on_output(std::size_t index, const wire::Output& output);
  void on_piece(std::size_t index, wire::Stream stream, const MarkReader::Piece& piece);
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
  std::unique_ptr<TaskGroup> tasks_;  // of connect()
  boost::asio::steady_timer changed_;
  ExecSink* sink_ = nullptr;  // of the line
  std::vector<HostOutcome> outcomes_;
  std::vector<std::size_t> which_;
  std::size_t running_ = 0, order_ = 0;
  int interrupts_ = 0;
  std::size_t connected_ = 0;  // of the hosts, from the first on
  bool leaving_ = false;
};

}  // namespace sortie::launcher
