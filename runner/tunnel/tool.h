// Runs the programs that the holder of a tunnel needs: wg, and wireguard-go if the kernel has no
// WireGuard. The calls block, each with a time limit; the holder does nothing else meanwhile.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/process_status.h"
#include "common/base/result.h"

namespace sortie::runner::tunnel {

/// Path of a program in PATH or in the usual folders of system tools. Empty if it is not found.
std::string find_tool(const std::string& name);

/// Runs `argv` with `input` as stdin and returns its stdout. Error: it failed (with the text of its
/// stderr) or did not end within the limit.
Result<std::string> run_tool(const std::vector<std::string>& argv, const std::string& input);

/// Output of a program on one line, without control characters and without blanks at its end, for a
/// message.
std::string one_line(std::string text);

/// A child that dies with this process. Its output goes to a pipe.
struct Service {
  pid_t pid = -1;
  Fd output;
};
Result<Service> start_service(const std::vector<std::string>& argv,
                              const std::vector<std::string>& variables);
/// How the service ended; nullopt if it runs, or if there is none (WireGuard of the kernel needs no
/// program).
std::optional<ProcessStatus> ended(Service& service);
/// Sends KILL, since it has nothing to save, and waits for its exit.
void end_service(Service& service);

}  // namespace sortie::runner::tunnel
