#include "launcher/console/terminal_signals.h"

#include <fmt/core.h>

#include <csignal>

namespace sortie::launcher {

void add_terminal_signals(boost::asio::signal_set& signals) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGTSTP})
    if (struct sigaction was{};
        ::sigaction(number, nullptr, &was) == 0 && was.sa_handler != SIG_IGN)
      signals.add(number);
  std::signal(SIGTTOU, SIG_IGN);
  std::signal(SIGTTIN, SIG_IGN);
}

std::string ctrl_z_refusal(std::string_view instead) {
  return fmt::format(
      "Ctrl-Z: not suspended: without heartbeats from here the hosts would end their ranks; "
      "Ctrl-C ends it{}{}",
      instead.empty() ? "" : ", ", instead);
}

}  // namespace sortie::launcher
