#include "launcher/shell/shell_input.h"

#include <fmt/core.h>

#include <charconv>

namespace sortie::launcher {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

std::string_view stripped(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

/// `exit`, `exit 3`, `quit`; with anything else it is a line for the hosts.
std::optional<ShellInput> leaving(std::string_view text) {
  const std::size_t blank = text.find_first_of(kBlanks);
  const std::string_view word = text.substr(0, blank);
  if (word != "exit" && word != "quit") return std::nullopt;
  ShellInput input;
  input.kind = ShellInput::Kind::leave;
  if (blank == text.npos) return input;
  const std::string_view rest = stripped(text.substr(blank));
  int status = 0;
  const auto read = std::from_chars(rest.data(), rest.data() + rest.size(), status);
  if (read.ec != std::errc{} || read.ptr != rest.data() + rest.size()) return std::nullopt;
  input.status = status & 0xff;
  return input;
}

}  // namespace

ShellInput parse_shell_input(std::string_view line) {
  using Kind = ShellInput::Kind;
  const std::string_view text = stripped(line);
  ShellInput input;
  if (text.empty() || text.front() == '#') return input;
  if (auto left = leaving(text)) return *left;
  if (text == "?" || text == "=") {
    input.kind = text == "?" ? Kind::list : Kind::folding;
  } else if (text.front() == '!') {
    input.text = stripped(text.substr(1));
    if (input.text.empty())
      input.error = "! runs a command on this machine; write the command after it";
    else
      input.kind = Kind::local;
  } else if (text.front() == '@') {
    const std::size_t blank = text.find_first_of(kBlanks);
    input.hosts = text.substr(1, blank == text.npos ? blank : blank - 1);
    if (blank != text.npos) input.text = stripped(text.substr(blank));
    input.kind = input.text.empty() ? Kind::select : Kind::remote;
    if (input.hosts.empty() && !input.text.empty()) {
      input.kind = Kind::nothing;
      input.error = "@ names no host; write @HOST or @GROUP before the command, without a space";
    }
  } else if (text.front() == '+' || text.front() == '-') {
    input.hosts = text.substr(1);
    if (input.hosts.empty() || input.hosts.find_first_of(kBlanks) != input.hosts.npos)
      input.error = fmt::format(
          "{0} changes the hosts that lines go to; write {0}HOST or {0}GROUP alone", text.front());
    else
      input.kind = text.front() == '+' ? Kind::add : Kind::remove;
  } else {
    input.kind = Kind::remote;
    input.text = line;
  }
  return input;
}

bool line_goes_on(std::string_view line) {
  const std::size_t other = line.find_last_not_of('\\');
  return (line.size() - (other == line.npos ? 0 : other + 1)) % 2 == 1;
}

}  // namespace sortie::launcher
