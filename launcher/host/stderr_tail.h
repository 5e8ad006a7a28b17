// The last 64 KiB that a channel's command wrote to stderr.
#pragma once

#include <string>
#include <string_view>

namespace sortie::launcher {

class StderrTail {
 public:
  void add(std::string_view bytes) {
    text_ += bytes.substr(bytes.size() > kKept ? bytes.size() - kKept : 0);
    // Truncated with some slack, so that 64 KiB are not moved for each line.
    if (text_.size() > 2 * kKept) text_.erase(0, text_.size() - kKept);
  }
  std::string text() const { return text_.substr(text_.size() > kKept ? text_.size() - kKept : 0); }

 private:
  static constexpr std::size_t kKept = 64 * 1024;
  std::string text_;
};

}  // namespace sortie::launcher
