#include "launcher/terminal/raw_terminal.h"

#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace sortie::launcher {
namespace {

// For the crash handler, which must be async-signal-safe.
termios saved_modes{};
volatile std::sig_atomic_t modes_are_saved = 0;

void restore_and_die(int number) {
  if (modes_are_saved != 0) ::tcsetattr(STDIN_FILENO, TCSANOW, &saved_modes);
  ::signal(number, SIG_DFL);
  ::raise(number);
}

constexpr int kCrashes[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};

}  // namespace

RawTerminal::RawTerminal() {
  for (const int number : kCrashes) std::signal(number, restore_and_die);
}

RawTerminal::~RawTerminal() {
  restore();
  for (const int number : kCrashes) std::signal(number, SIG_DFL);
}

Result<> RawTerminal::set() {
  if (raw_) return {};
  termios modes{};
  if (::tcgetattr(STDIN_FILENO, &modes) != 0)
    return std::unexpected(os_error(errno, "read the terminal's modes"));
  saved_modes = modes;
  ::cfmakeraw(&modes);
  modes.c_iflag |= IGNPAR;
  modes_are_saved = 1;
  if (::tcsetattr(STDIN_FILENO, TCSADRAIN, &modes) != 0) {
    modes_are_saved = 0;
    return std::unexpected(os_error(errno, "set the terminal's modes"));
  }
  raw_ = true;
  return {};
}

void RawTerminal::restore() {
  if (!raw_) return;
  raw_ = false;
  modes_are_saved = 0;
  // Ignore SIGTTOU, which would stop a background process that changes the modes.
  struct sigaction was {};
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGTTOU, &ignore, &was);
  ::tcsetattr(STDIN_FILENO, TCSADRAIN, &saved_modes);
  ::sigaction(SIGTTOU, &was, nullptr);
}

Result<> RawTerminal::suspend() {
  const bool was_raw = raw_;
  restore();
  ::kill(::getpid(), SIGSTOP);
  return was_raw ? set() : Result<>{};
}

std::optional<WindowSize> window_size() {
  winsize size{};
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO})
    if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0)
      return WindowSize{size.ws_col, size.ws_row};
  return std::nullopt;
}

}  // namespace sortie::launcher
