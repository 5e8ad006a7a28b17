#include "common/cli/print.h"

#include <fmt/core.h>

#include <cerrno>
#include <cstdio>

#include "common/base/exit_code.h"
#include "common/base/printable.h"

namespace sortie::cli {

int print_error(const Error& error) {
  // Not by fmt::print(): it throws if stderr is closed or full, and the exit code still counts.
  const std::string text = printable_lines(error.message) + "\n";
  (void)std::fwrite(text.data(), 1, text.size(), stderr);
  return exit_code_for(error.code);
}

int print_text(std::string_view program, std::string_view text) {
  const bool written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (written) return kExitOk;
  return print_error(os_error(errno, fmt::format("{}: write to stdout", program)));
}

}  // namespace sortie::cli
