#include "common/cli/print.h"

#include <fmt/core.h>

#include <cerrno>
#include <cstdio>

#include "common/base/exit_code.h"
#include "common/base/print_stderr.h"
#include "common/base/printable.h"

namespace sortie::cli {

int print_error(const Error& error) {
  print_stderr("{}\n", printable_lines(error.message));
  return exit_code_for(error.code);
}

int print_text(std::string_view program, std::string_view text) {
  const bool written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (written) return kExitOk;
  return print_error(os_error(errno, fmt::format("{}: write to stdout", program)));
}

}  // namespace sortie::cli
