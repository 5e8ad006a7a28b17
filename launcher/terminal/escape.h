// EscapeFilter: what a person types into a session is for the host, but for `~.` and its kin at the
// begin of a line, as ssh has them. Pure.
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
  /// What comes of `typed`, in order; bytes after a disconnect are dropped.
  std::vector<Part> feed(std::string_view typed);

 private:
  bool line_begins_ = true, tilde_ = false;
};

/// What `~?` shows; lines end in CR LF.
std::string_view escape_help();

}  // namespace sortie::launcher
