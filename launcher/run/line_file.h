// LineFile: an append-only file of lines. If a crash has cut off the last line, a newline is added
// before the next line, so that only the cut line is lost. Bytes that a full disk rejects stay in
// memory and are retried, so that a full disk never cuts a line.
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

  /// Appends `line`, which must end with '\n'. After an error the line waits in memory, or was
  /// dropped because more than kMaxWaiting bytes would be waiting.
  Result<> append(std::string_view line);
  /// Tries to write the waiting bytes.
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
