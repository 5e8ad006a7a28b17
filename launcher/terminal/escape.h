// EscapeFilter: separates the user's input for the host from escape sequences (`~.` and others) at
// the start of a line, as in ssh. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sortie::launcher {

class EscapeFilter {
 public:
  enum class Action { none, disconnect, suspend, help };
  struct Part {
    std::string bytes;  // for the host, before the action
    Action action = Action::none;
    bool operator==(const Part&) const = default;
  };
  /// Splits `typed` into parts, in order. Bytes after a disconnect are dropped.
  std::vector<Part> feed(std::string_view typed);

 private:
  bool line_begins_ = true, tilde_ = false;
};

/// Text shown by `~?`. Lines end with CR LF.
std::string_view escape_help();

}  // namespace sortie::launcher
