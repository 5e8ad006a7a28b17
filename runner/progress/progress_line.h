// The progress lines that ranks write to SORTIE_SOCKET (common/training/README.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "common/training/progress.h"

namespace sortie::runner {

struct ProgressLine {
  std::uint64_t step = 0;
  training::Section section = training::Section::step;
  std::uint64_t sequence = 0;
  std::uint64_t ticks = 0;
  std::uint64_t own_us = 0;
  bool operator==(const ProgressLine&) const = default;
};

enum class LineKind {
  event,     // not a progress line
  progress,  // a valid progress line
  broken,    // of type progress, but malformed
};
/// Parses `line`, which is_event_line() must accept. Sets `progress` only for LineKind::progress.
LineKind read_progress_line(std::string_view line, ProgressLine& progress);

}  // namespace sortie::runner
