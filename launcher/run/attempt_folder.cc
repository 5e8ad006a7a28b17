#include "launcher/run/attempt_folder.h"

#include <algorithm>
#include <charconv>
#include <string>

namespace sortie::launcher {
namespace fs = std::filesystem;

fs::path attempt_folder(const fs::path& run, std::uint32_t attempt) {
  return attempt <= 1 ? run : run / "attempts" / std::to_string(attempt);
}

std::uint32_t latest_attempt(const fs::path& run) {
  std::uint32_t latest = 1;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(run / "attempts", error)) {
    const std::string name = entry.path().filename().string();
    std::uint32_t number = 0;
    const auto [end, bad] = std::from_chars(name.data(), name.data() + name.size(), number);
    std::error_code missing;
    if (bad == std::errc{} && end == name.data() + name.size() && number > latest &&
        fs::exists(entry.path() / "plan.json", missing))
      latest = number;
  }
  return latest;
}

}  // namespace sortie::launcher
