// Programs that the holder of a tunnel needs: wg, and wireguard-go where the kernel has no
// WireGuard. Blocking, each call with a limit: the holder does nothing else meanwhile.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/process_status.h"
#include "common/base/result.h"

namespace sortie::runner::tunnel {

/// Path of a program: in PATH, and where administrators' programs are. Empty: it is not there.
std::string find_tool(const std::string& name);

/// Runs `argv` with `input` as its stdin; what it wrote to stdout. Error: it failed, with its own
/// words, or did not end within the limit.
Result<std::string> run_tool(const std::vector<std::string>& argv, const std::string& input);

/// A child that dies with this process, its output in a pipe.
struct Service {
  pid_t pid = -1;
  Fd output;
};
Result<Service> start_service(const std::vector<std::string>& argv,
                              const std::vector<std::string>& variables);
/// How it has ended; none: it runs, or there is none (WireGuard of the kernel needs no program).
std::optional<ProcessStatus> ended(Service& service);
/// KILLs it, since it has nothing to save, and waits for its end.
void end_service(Service& service);

}  // namespace sortie::runner::tunnel
