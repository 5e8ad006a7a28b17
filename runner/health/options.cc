#include "runner/health/options.h"

#include <charconv>
#include <string_view>

#include "runner/health/nvml.h"

namespace sortie::runner::health {
namespace {

Result<std::uint64_t> option_number(std::string_view name, std::string_view text,
                                    std::uint64_t least, std::uint64_t most) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < least || value > most)
    return fail(ErrorCode::usage, std::string(name) + ": " + std::string(text) +
                                      ": not a whole number within its limits");
  return value;
}

}  // namespace

Result<Options> parse_options(std::span<char* const> words) {
  Options options;
  for (std::size_t i = 1; i < words.size(); i += 2) {
    const std::string_view name = words[i];
    if (i + 1 == words.size())
      return fail(ErrorCode::usage, std::string(name) + ": a value is missing");
    const std::string value = words[i + 1];
    if (name == "--kmsg") {
      options.kernel_log = value;
    } else if (name == "--nvml") {
      SORTIE_TRY(check_named_library(value));
      options.nvml = value;
    } else if (name == "--root") {
      options.root = value;
    } else if (name == "--folder") {
      options.folders.push_back(value);
    } else if (name == "--floor") {
      SORTIE_ASSIGN_OR_RETURN(options.floor, option_number(name, value, 0, 1ull << 60));
    } else if (name == "--tick-ms") {
      SORTIE_ASSIGN_OR_RETURN(const std::uint64_t ms, option_number(name, value, 10, 3'600'000));
      options.tick = std::chrono::milliseconds(ms);
    } else {
      return fail(ErrorCode::usage, std::string(name) + ": not an option");
    }
  }
  return options;
}

}  // namespace sortie::runner::health
