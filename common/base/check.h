// SORTIE_CHECK: aborts with file, line and values on a state that only our own bug can produce.
// Never reachable from user, peer or OS input: those are Results.
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
