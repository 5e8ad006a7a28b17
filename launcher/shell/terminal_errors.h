// Removes a message of bash that only concerns Sortie from the stderr of a shell. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sortie::launcher {

/// An interactive bash without a terminal reports that it can not restore the terminal's settings
/// whenever a process of a foreground job dies of a signal, also of SIGPIPE:
/// "bash: [PID: LEVEL (FD)] tcsetattr: Inappropriate ioctl for device". No option of bash prevents
/// it, so the line is dropped here.
class TerminalErrors {
 public:
  /// Returns the bytes to pass on. Holds back the possible start of such a message.
  std::string feed(std::string_view bytes);
  /// Returns the bytes that were held back. Called when nothing more can follow.
  std::string finish();

 private:
  std::string held_;
};

}  // namespace sortie::launcher
