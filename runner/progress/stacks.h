// What a rank is doing, for a person who wants to know why it hangs. Two sources: the program's own
// account, where it catches SIGQUIT (sortie-train, Python with faulthandler), in files beside its
// socket; and the kernel's view of its threads, which needs nothing of it.
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

/// `root` and what descends from it, at most 32 processes; empty when it is gone. Reads /proc.
std::vector<pid_t> process_tree_of(pid_t root);

/// Whether the process has a handler for SIGQUIT; without one the signal would end it.
bool catches_quit(pid_t pid);

/// Name, state, system call and, where this user may see them, kernel functions of each thread.
std::string kernel_view(pid_t pid);

/// One rank's dump, from the signal to the text. Nothing here blocks.
class StackDumper {
 public:
  using Clock = std::chrono::steady_clock;

  /// `rank`: its number; `root`: its process, 0 when it has none (ended, or not reported by its
  /// keeper yet); `socket_path`: its SORTIE_SOCKET. Sends SIGQUIT to the processes that catch it.
  StackDumper(std::uint32_t rank, pid_t root, std::string socket_path);

  /// Looks what has come. True when there is nothing to wait for any more.
  bool complete(Clock::time_point now);
  /// What there is now.
  wire::StackDump take();

 private:
  struct File {
    std::size_t from = 0;       // what was there before
    std::size_t size = 0;       // when it was looked at last
    Clock::time_point grown{};  // when that changed
    bool ended = false;         // it has the last line
  };
  void look(Clock::time_point now);

  const std::uint32_t rank_;
  const std::string prefix_;  // of the files' paths
  std::vector<pid_t> processes_;
  std::size_t asked_ = 0;  // processes that were sent the signal
  std::string refused_;    // why one was not
  std::map<std::string, File> files_;
};

}  // namespace sortie::runner
