#include "launcher/shell/terminal_errors.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace sortie::launcher {
namespace {

constexpr std::string_view kStart = "bash: [";
constexpr std::size_t kMaxMessage = 300;  // bytes; the text of the error is in the user's language

/// Length of the message at the begin of `text`, with its newline; 0 if there is none; nullopt if
/// more bytes are needed to decide. '#' stands for one or more digits.
std::optional<std::size_t> message_length(std::string_view text) {
  constexpr std::string_view kForm = "bash: [#: # (#)] tcsetattr: ";
  std::size_t at = 0;
  for (const char want : kForm) {
    const std::size_t first = at;
    if (want == '#')
      while (at < text.size() && text[at] >= '0' && text[at] <= '9') ++at;
    else if (at < text.size() && text[at] == want)
      ++at;
    if (at == text.size() && text.size() < kMaxMessage) return std::nullopt;
    if (at == first) return 0;
  }
  const std::size_t end = text.find('\n', at);
  if (end != text.npos) return end + 1;
  return text.size() < kMaxMessage ? std::nullopt : std::optional<std::size_t>(0);
}

}  // namespace

std::string TerminalErrors::feed(std::string_view bytes) {
  held_ += bytes;
  std::string out;
  while (!held_.empty()) {
    std::size_t at = held_.find(kStart);
    if (at == held_.npos) {
      std::size_t keep = std::min(kStart.size() - 1, held_.size());
      while (keep > 0 && !held_.ends_with(kStart.substr(0, keep))) --keep;
      at = held_.size() - keep;
    }
    out += held_.substr(0, at);
    held_.erase(0, at);
    if (!held_.starts_with(kStart)) break;
    const auto length = message_length(held_);
    if (!length) break;
    if (*length == 0) out += kStart;
    held_.erase(0, *length == 0 ? kStart.size() : *length);
  }
  return out;
}

std::string TerminalErrors::finish() {
  return std::exchange(held_, {});
}

}  // namespace sortie::launcher
