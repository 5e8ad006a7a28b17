// Signals of a command that keeps hosts alive (run, exec, check, copies): those that end it, and
// those that would suspend it.
#pragma once

#include <boost/asio/signal_set.hpp>
#include <string>
#include <string_view>

namespace sortie::launcher {

/// Adds SIGINT, SIGTERM, SIGHUP and SIGTSTP (Ctrl-Z), except those that are ignored already (nohup,
/// a background job of a shell), which stay ignored. Also ignores SIGTTOU and SIGTTIN, so that
/// terminal output from the background does not suspend the process.
void add_terminal_signals(boost::asio::signal_set& signals);

/// Message for Ctrl-Z, which does not suspend the command: a suspended process sends no heartbeats,
/// so hosts would end their processes. `instead`: how to get the terminal back; may be empty.
std::string ctrl_z_refusal(std::string_view instead);

}  // namespace sortie::launcher
