// Messages on stderr that are never the cause of a failure.
#pragma once

#include <fmt/core.h>

#include <cstdio>
#include <string>
#include <utility>

namespace sortie {

/// Formats and prints on stderr. Errors are ignored: fmt::print() throws if stderr is a full disk
/// or a pipe without a reader, and then the work in hand, or its exit code, would be lost.
template <typename... Arguments>
void print_stderr(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  const std::string text = fmt::format(format, std::forward<Arguments>(arguments)...);
  (void)std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace sortie
