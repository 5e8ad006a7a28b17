// Command-line options of sortie-health.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace sortie::runner::health {

struct Options {
  std::string kernel_log = "/dev/kmsg";
  std::string nvml = "libnvidia-ml.so.1";
  std::string root;                      // prepended to /sys and /proc
  std::vector<std::string> folders;      // whose free space is watched
  std::uint64_t floor = 512ull << 20;    // bytes that must be free in them
  std::chrono::milliseconds tick{5000};  // interval between samples of sources that send no events
};

/// Parses `--kmsg FILE --nvml LIBRARY --root FOLDER --folder FOLDER... --floor BYTES --tick-ms N`;
/// all are optional. LIBRARY must pass check_named_library().
Result<Options> parse_options(std::span<char* const> words);

}  // namespace sortie::runner::health
