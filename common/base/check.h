// SORTIE_CHECK: aborts with file, line and a message if a condition is false that only a bug in
// Sortie can make false. Input from a user, a peer or the OS must never trigger it: such failures
// are Results.
#pragma once

#include <fmt/core.h>

#include <string>

namespace sortie {
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);
}

#define SORTIE_CHECK(condition, ...)                                                         \
  do {                                                                                       \
    if (!(condition)) [[unlikely]]                                                           \
      ::sortie::check_failed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (false)
