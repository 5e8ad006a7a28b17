#include "trainer/cli/report.h"

#include <fmt/core.h>

#include <cstdio>
#include <iterator>

#include "common/base/exit_code.h"
#include "common/base/print_stderr.h"

namespace sortie::trainer {

int report_error(std::string_view command, const Result<>& result) {
  if (result) return kExitOk;
  print_stderr("sortie-train {}: {}\n", command, result.error().message);
  return exit_code_for(result.error().code);
}

std::string human_bytes(std::uint64_t bytes) {
  constexpr std::string_view kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 999.95 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace sortie::trainer
