// Describes a forbidden access. Used in a SIGSEGV handler, so it allocates nothing on the heap.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

namespace emulated_cuda {

/// A line of at most 255 bytes; the rest is cut off.
class FaultLine {
 public:
  template <class... Values>
  void add(fmt::format_string<Values...> format, Values&&... values) {
    const auto done =
        fmt::format_to_n(text_ + size_, kRoom - size_, format, std::forward<Values>(values)...);
    size_ = std::min(kRoom, size_ + done.size);
  }
  std::string_view text() const { return {text_, size_}; }

 private:
  static constexpr std::size_t kRoom = 255;
  char text_[kRoom];
  std::size_t size_ = 0;
};

}  // namespace emulated_cuda
