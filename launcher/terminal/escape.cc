#include "launcher/terminal/escape.h"

#include <utility>

namespace sortie::launcher {
namespace {

constexpr char kCtrlZ = '\x1a';

EscapeFilter::Action action_of(char key) {
  if (key == '.') return EscapeFilter::Action::disconnect;
  if (key == kCtrlZ) return EscapeFilter::Action::suspend;
  if (key == '?') return EscapeFilter::Action::help;
  return EscapeFilter::Action::none;
}

}  // namespace

std::vector<EscapeFilter::Part> EscapeFilter::feed(std::string_view typed) {
  std::vector<Part> parts(1);
  for (const char key : typed) {
    Part& part = parts.back();
    if (std::exchange(tilde_, false)) {
      part.action = action_of(key);
      if (part.action == Action::disconnect) return parts;
      if (part.action != Action::none) {
        parts.emplace_back();
        continue;  // still at the start of the line
      }
      part.bytes += '~';
      if (key == '~') {
        line_begins_ = false;
        continue;
      }
    } else if (line_begins_ && key == '~') {
      tilde_ = true;
      continue;
    }
    part.bytes += key;
    line_begins_ = key == '\r' || key == '\n';
  }
  return parts;
}

std::string_view escape_help() {
  return "~?\r\n"
         "At the start of a line:\r\n"
         "  ~.   end the connection\r\n"
         "  ~^Z  suspend sortie\r\n"
         "  ~~   send the tilde\r\n"
         "  ~?   this text\r\n";
}

}  // namespace sortie::launcher
