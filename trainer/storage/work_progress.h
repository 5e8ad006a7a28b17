// Progress reports of a long piece of work.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace sortie::trainer {

struct WorkProgress {
  std::string_view stage{};  // "counting words"; static text
  std::uint64_t done = 0;
  std::uint64_t total = 0;  // 0 = not known
  std::string_view unit{};  // "samples"; empty = bytes
};

/// Called from time to time, from one thread at a time. Must be quick. May be empty.
using OnProgress = std::function<void(const WorkProgress&)>;

}  // namespace sortie::trainer
