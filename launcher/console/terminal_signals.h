// The signals of a command that keeps hosts alive (run, exec, check, copies): what ends it, and
// what would only suspend it.
#pragma once

#include <boost/asio/signal_set.hpp>
#include <string>
#include <string_view>

namespace sortie::launcher {

/// INT, TERM, HUP, and TSTP (Ctrl-Z); without those that the parent has had ignored, which stay so:
/// nohup, or a shell's job in the background. From then on output to a terminal of which the
/// process is not in the foreground does not suspend it either (SIGTTOU, SIGTTIN).
void add_terminal_signals(boost::asio::signal_set& signals);

/// What is said when Ctrl-Z comes, which suspends nothing: a suspended process sends no heartbeats,
/// and hosts would end what they run. `instead`: how to have the terminal back; may be empty.
std::string ctrl_z_refusal(std::string_view instead);

}  // namespace sortie::launcher
