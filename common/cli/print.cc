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

int end_output(std::string_view program, int code) {
  errno = 0;
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (written || code != kExitOk || errno == EPIPE) return code;
  const std::string what = fmt::format("{}: write to stdout", program);
  // The reason is gone if an earlier write failed and this one had nothing to do.
  return print_error(errno != 0 ? os_error(errno, what)
                                : Error{ErrorCode::io, what + ": not everything was written"});
}

}  // namespace sortie::cli
