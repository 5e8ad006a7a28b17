// Supervisor: one attempt of a run over all its hosts. Connects, starts all ranks or none, watches,
// and on the first failure ends everything. All state lives on the I/O thread; there are no locks.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/process_status.h"
#include "launcher/console.h"
#include "launcher/copy/stage.h"
#include "launcher/host_session.h"
#include "launcher/plan.h"
#include "launcher/pmix_relay.h"
#include "launcher/run_folder.h"

namespace sortie::launcher {

/// How a run ended.
struct Verdict {
  int exit_code = 0;
  std::string text;               // empty when every rank exited 0
  std::uint32_t ended_after = 0;  // ranks that ended as a consequence
};

class Supervisor {
 public:
  struct Parts {
    boost::asio::any_io_executor executor;
    Transport& ssh;
    Transport& local;
    const RunnerBinary& binary;
    Console& console;
    RunFolder& folder;
    // What a runner may need beyond the grace: killing, reaping, delivering the last output.
    std::chrono::milliseconds stop_slack{10000};
  };

  /// All references must outlive the supervisor.
  Supervisor(Parts parts, const config::JobConfig& job, const LaunchPlan& plan);

  /// The whole attempt. Bounded: every wait in it has a deadline, but for running ranks.
  boost::asio::awaitable<Verdict> run();

  /// Ctrl-C, TERM or HUP: the first call stops with the grace, the next one at once.
  void interrupt(int signal_number);

 private:
  enum class HostState { connecting, connected, ready, running, finished, lost };
  struct Host {
    std::size_t index = 0;
    const HostPlan* plan = nullptr;
    std::shared_ptr<HostSession> session;
    HostState state = HostState::connecting;
    std::optional<Error> error;
    std::uint64_t unacknowledged = 0;  // output bytes written but not yet credited
    std::string stage_folder;          // where the staged files are, when there are any
  };
  struct Rank {
    std::size_t host = 0;
    std::uint32_t pid = 0;
    std::optional<ProcessStatus> status;
    std::deque<std::string> last_lines;  // of stderr, for the report
    std::string partial;
  };

  /// Runs `work(i)` for all hosts with at most `width` at the same time; returns when all are done,
  /// or at once after an interrupt.
  struct Fanout;
  boost::asio::awaitable<void> fanout_worker(std::shared_ptr<Fanout> fanout);
  using HostWork = boost::asio::awaitable<void> (Supervisor::*)(std::size_t);
  boost::asio::awaitable<void> for_all_hosts(std::size_t width, HostWork work);
  boost::asio::awaitable<void> connect_host(std::size_t index);
  boost::asio::awaitable<void> prepare_host(std::size_t index);
  boost::asio::awaitable<void> stage_host(std::size_t index);
  boost::asio::awaitable<bool> read_staged();
  void note_staged();
  std::string choose_master_addr() const;
  bool report_host_errors();

  void note_connected(const Host& host);
  void note_ready(const Host& host, const wire::JobReady& ready);
  void start_all();
  void give_up_on(Host& host);
  void note_end(const Verdict& verdict);

  void on_message(Host& host, wire::Message message);
  void on_output(Host& host, const wire::Output& output);
  void on_event(const Host& host, const wire::RankEvent& event);
  void on_rank_exited(Host& host, const wire::RankExited& exited);
  void on_finished(Host& host);
  void on_lost(Host& host, Error error);
  void give_up(Host& host, std::string why);
  bool owns(const Host& host, std::uint32_t rank) const;
  void forward(std::vector<PmixRelay::Outgoing> messages);

  /// Records the first cause; later ones are consequences. Then stops everything.
  void decide(int exit_code, std::string text, const nlohmann::ordered_json& details);
  void stop_all(std::uint32_t grace_ms, const std::string& reason);
  std::string rank_report(std::uint32_t rank, const std::string& what) const;
  void wake();
  bool all_ended() const;

  Parts parts_;
  const config::JobConfig& job_;
  const LaunchPlan& plan_;
  std::vector<Host> hosts_;
  std::vector<Rank> ranks_;
  PmixRelay relay_;
  std::unique_ptr<Stager> stager_;  // when the job stages files
  std::string master_addr_;
  std::optional<Verdict> verdict_;
  std::optional<std::size_t> cause_;  // the rank that decided, if one did
  int interrupts_ = 0;
  std::uint32_t grace_ms_ = 0;
  bool stopping_ = false, ended_ = false;
  boost::asio::steady_timer
      changed_;  // cancelled whenever a waiting condition may have become true
  std::chrono::steady_clock::time_point stop_deadline_{};
};

}  // namespace sortie::launcher
