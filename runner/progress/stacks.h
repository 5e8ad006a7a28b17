// What a rank is doing, for a person who investigates a hang. There are two sources. One is the
// program's own stacks, if it handles SIGQUIT (sortie-train, Python with faulthandler): files next
// to its socket. The other is the kernel's view of its threads, which needs no cooperation.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/wire/message.h"

namespace sortie::runner {

inline constexpr std::size_t kMaxStackBytes = 256u << 10;

/// `root` and its descendants, at most 32 processes; empty if `root` does not exist. Reads /proc.
std::vector<pid_t> process_tree_of(pid_t root);

/// Whether the process handles SIGQUIT. Without a handler the signal would end it.
bool catches_quit(pid_t pid);

/// Name, state, system call and, if this user may see them, kernel stack of each thread.
std::string kernel_view(pid_t pid);

/// Creates the dump of one rank, from the signal to the text. No function blocks.
class StackDumper {
 public:
  using Clock = std::chrono::steady_clock;

  /// `rank`: its number; `root`: its process, 0 if it has none (exited, or not yet reported by its
  /// keeper); `socket_path`: its SORTIE_SOCKET. Sends SIGQUIT to the processes that handle it.
  StackDumper(std::uint32_t rank, pid_t root, std::string socket_path);

  /// Checks what has been written. Returns true if there is nothing more to wait for.
  bool complete(Clock::time_point now);
  /// The dump with what has been written so far.
  wire::StackDump take();

 private:
  struct File {
    std::size_t from = 0;       // size before the signal
    std::size_t size = 0;       // size at the last check
    Clock::time_point grown{};  // when the size last changed
    bool ended = false;         // it contains the last line
  };
  void look(Clock::time_point now);

  const std::uint32_t rank_;
  const std::string prefix_;  // prefix of the files' paths
  std::vector<pid_t> processes_;
  std::size_t asked_ = 0;  // number of processes that were sent the signal
  std::string refused_;    // why a signal could not be sent
  std::map<std::string, File> files_;
};

}  // namespace sortie::runner
