// LineFile: a file of lines that is only appended to. A line that a crash has cut off is ended
// before the next one, so that it spoils no other; what a full disk does not take waits in memory
// and is tried again, so that no line is cut off by it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::launcher {

class LineFile {
 public:
  static constexpr std::size_t kMaxWaiting = 4u << 20;

  explicit LineFile(std::filesystem::path path) : path_(std::move(path)) {}

  /// `line` ends with a line end. Error: it waits, or was dropped because kMaxWaiting do.
  Result<> append(std::string_view line);
  /// Tries to write what waits.
  Result<> flush();

  std::size_t waiting_bytes() const { return waiting_.size(); }
  std::size_t dropped_lines() const { return dropped_; }

 private:
  Result<> open();

  std::filesystem::path path_;
  Fd file_;
  std::string waiting_;
  std::size_t dropped_ = 0;
};

}  // namespace sortie::launcher
