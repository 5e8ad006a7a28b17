// Words that sortie-health is started with.
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
  std::string root;                      // before /sys and /proc
  std::vector<std::string> folders;      // whose room is watched
  std::uint64_t floor = 512ull << 20;    // bytes that must be free in them
  std::chrono::milliseconds tick{5000};  // between looks at what does not tell by itself
};

/// `--kmsg FILE --nvml LIBRARY --root FOLDER --folder FOLDER... --floor BYTES --tick-ms N`, each
/// may be missing. A library that is named must be one that check_named_library() takes.
Result<Options> parse_options(std::span<char* const> words);

}  // namespace sortie::runner::health
