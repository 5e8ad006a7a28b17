// ShellSession: the main loop of `sortie shell`. Reads lines from the prompt and runs them on
// hosts.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/console/console.h"
#include "launcher/exec/fold_sink.h"
#include "launcher/shell/prompt.h"
#include "launcher/shell/shell_hosts.h"
#include "launcher/shell/shell_input.h"

namespace sortie::launcher {

class ShellSession {
 public:
  struct Parts {
    boost::asio::any_io_executor executor;
    Transport& transport;
    const RunnerBinary& binary;
    Console& console;
    const config::RunnerConfig& runner;
    Prompt::Options prompt;
  };
  /// All references must outlive the session.
  ShellSession(Parts parts, const std::vector<std::string>& hosts, std::string run_id);

  boost::asio::awaitable<void> run();
  int exit_code() const;

 private:
  boost::asio::awaitable<void> serve();
  boost::asio::awaitable<void> watch_signals();
  boost::asio::awaitable<void> show_waiting();
  boost::asio::awaitable<std::optional<std::string>> next_line();
  boost::asio::awaitable<void> act(ShellInput input);
  boost::asio::awaitable<void> run_remote(std::string line, std::vector<std::size_t> which);
  boost::asio::awaitable<void> run_folded(std::string line, std::vector<std::size_t> which);
  boost::asio::awaitable<void> run_live(std::string line, std::vector<std::size_t> which);
  void name_failures(const std::vector<HostOutcome>& outcomes);
  boost::asio::awaitable<void> show(FoldSink& fold);
  boost::asio::awaitable<void> flushed();
  void on_signal(int number);
  void on_gone(const std::string& host, const Outcome& outcome, bool in_line);
  boost::asio::awaitable<void> add_hosts(const std::string& expression);
  void remove_hosts(const std::string& expression);
  void list_hosts();
  /// Indices of the hosts of the prompt, each with its latest shell.
  std::vector<std::size_t> all() const;
  Result<std::vector<std::string>> named(const std::string& expression) const;
  Result<std::vector<std::size_t>> chosen(const std::string& expression) const;
  std::string prompt_text() const;
  void say(const std::string& text);

  Parts parts_;
  ShellHosts hosts_;
  Prompt prompt_;
  boost::asio::signal_set signals_;
  boost::asio::steady_timer timer_;
  std::map<std::string, std::size_t> index_of_;  // host -> index of its latest shell
  std::vector<std::size_t> selected_;            // hosts of lines without @
  int status_ = 0;                               // exit status of the last line
  std::optional<int> lost_;                      // exit code of the first lost host
  std::optional<int> ended_by_;                  // signal that ended the prompt
  std::optional<int> left_with_;                 // N of `exit N`
  bool folds_ = true;       // output is folded and shown at the end of the line
  bool connected_ = false;  // false while connect() runs
  bool adding_ = false, leaving_ = false, aborted_ = false;
};

}  // namespace sortie::launcher
