// ProgressLine: how far something that takes longer than a second is. On a terminal one line that
// is rewritten, elsewhere a plain line every ten seconds; to stderr.
#pragma once

#include <chrono>
#include <string>

namespace sortie::launcher {

/// "256.0 MiB", "1.5 GiB", "812 B".
std::string byte_count(std::uint64_t bytes);

class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// Called as often as one likes.
  void show(const std::string& what, std::uint64_t done, std::uint64_t total);
  /// Before anything else is printed.
  void clear();

 private:
  const bool terminal_;
  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point shown_ = begun_;
  bool visible_ = false;
};

}  // namespace sortie::launcher
