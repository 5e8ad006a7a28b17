#include "launcher/shell/marks.h"

#include <fmt/core.h>
#include <openssl/rand.h>

#include <algorithm>
#include <charconv>

#include "common/base/check.h"

namespace sortie::launcher {
namespace {

constexpr std::size_t kMaxStatusBytes = 16;

// The first loop relays lines and sends signals to its own process group. `trap :` keeps it and its
// parents alive and resets the signals to default in their children. The shell is interactive,
// without a terminal: Ctrl-C returns it to its next line from anywhere, and no syntax error ends
// it. The loop sends its pid ahead of the lines, so that the end of the shell also ends the loop.
//
// bash reads only to the end of a line. Other shells read ahead, and an interrupt or a syntax error
// drops the bytes read ahead. So dash and busybox get no lines over stdin, but an endless sequence
// of calls of the function `_`, of which any may be lost. `_` reads the lines from descriptor 7;
// `break` or `return` in a line leaves it, and the next call continues.
//
// An interactive shell reads, cuts and appends to the file that HISTFILE names before it reads its
// first line. An empty HISTFILE prevents this; bash and busybox set their default if it is unset.
//
// The outer shell writes its stderr to /dev/null, else it reports that the relay died of SIGHUP.
constexpr std::string_view kProgram = R"sh(PS1= PS2= HISTFILE=; export PS1 PS2 HISTFILE
unset ENV
exec 8>&2 2> /dev/null
trap : INT TERM
dot='?'
command -v bash > /dev/null 2>&1 || dot=
{ trap : INT TERM
  exec 8>&-
  echo "$(exec sh -c 'echo $PPID')"
  while IFS= read -r line; do
    case $line in
      [.+]*) printf '%s\n' "${line#$dot}" ;;
      I) kill -INT 0 ;;
      T) kill -TERM 0 ;;
    esac
  done
} | {
  exec 2>&8 8>&-
  trap : INT TERM
  read -r relay
  if [ "$dot" ]; then
    bash --norc --noprofile --noediting -i
  else
    exec 7<&0
    { trap : INT TERM
      printf '%s\n' '_() {
        sortie_status=$? sortie_lines=
        while :; do
          IFS= read -r sortie_line <&7 || exit "$sortie_status"
          sortie_lines=$sortie_lines${sortie_line#?}
          case $sortie_line in
            .*) eval "(exit $sortie_status); $sortie_lines"
                sortie_status=$? sortie_lines= ;;
            *) sortie_lines="$sortie_lines
" ;;
          esac
        done
      }'
      while printf '_\n_\n_\n_\n_\n_\n_\n_\n_\n_\n_\n_\n_\n_\n_\n_\n'; do :; done
    } 2> /dev/null | /bin/sh -i
  fi
  status=$?
  kill -HUP "$relay" 2> /dev/null
  exit $status
})sh";

std::string quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'')
      out += "'\\''";
    else if (c != '\0')
      out += c;
  }
  return out + "'";
}

/// Encodes one command for the relay: '+' before each physical line, '.' before the last one.
std::string relayed(std::string_view text) {
  std::string out;
  while (true) {
    const std::size_t end = text.find('\n');
    out += fmt::format("{}{}\n", end == text.npos ? '.' : '+', text.substr(0, end));
    if (end == text.npos) return out;
    text.remove_prefix(end + 1);
  }
}

}  // namespace

LineMark LineMark::make() {
  unsigned char bytes[16];
  SORTIE_CHECK(RAND_bytes(bytes, sizeof bytes) == 1);
  std::string digits;
  for (const unsigned char byte : bytes) digits += fmt::format("{:02x}", byte);
  return {digits.substr(0, 16), digits.substr(16)};
}

std::vector<std::string> shell_argv() {
  return {"/bin/sh", "-c", std::string(kProgram)};
}

std::string opening_order() {
  // Marks are written to copies of the outputs, because a line may redirect its own permanently
  // (exec > log).
  return relayed("exec 8>&1 9>&2; set +o history 2> /dev/null; set +H 2> /dev/null");
}

std::string closing_order() {
  // At the end of input an interactive bash writes "exit" to stderr.
  return relayed("exec 2> /dev/null");
}

std::string line_order(const LineMark& mark, std::string_view line, int last_status) {
  // Discard errors and `set -x` traces of printing the marks.
  const auto both = [&](std::string_view out, std::string_view err) {
    return fmt::format(
        "{{ printf '\\036%s%s{0}' {2} {3} {4}>&8; printf '\\036%s%s{1}' {2} {3} "
        ">&9; }} 2> /dev/null",
        out, err, mark.first, mark.second, out.contains('d') ? "$? " : "");
  };
  const std::string status = last_status == 0 ? "" : fmt::format("(exit {}); ", last_status);
  return relayed(both("<", "<")) +
         relayed(fmt::format("{{ {}eval {}; }} < /dev/null 7<&- 8>&- 9>&-", status, quoted(line))) +
         // After an unclosed quote bash takes the next line as the rest of the order. An empty line
         // keeps the status.
         relayed("") + relayed(both(">%d\\n", ">\\n"));
}

void MarkReader::expect(const LineMark& mark) {
  mark_ = mark.text();
  inside_ = false;
}

void MarkReader::give(std::size_t size, const Take& take) {
  if (size == 0) return;
  using Kind = Piece::Kind;
  take({inside_ ? Kind::text : Kind::stray, std::string_view(held_).substr(0, size)});
  held_.erase(0, size);
}

void MarkReader::feed(std::string_view bytes, const Take& take) {
  held_ += bytes;
  while (step(take)) {
  }
}

void MarkReader::finish(const Take& take) {
  give(held_.size(), take);
  mark_.reset();
  inside_ = false;
}

/// Returns true if a mark was read; more may follow.
bool MarkReader::step(const Take& take) {
  if (!mark_) {
    give(held_.size(), take);
    return false;
  }
  const std::string want = *mark_ + (inside_ ? '>' : '<');
  const std::size_t at = held_.find(want);
  if (at == held_.npos) {
    std::size_t keep = std::min(want.size() - 1, held_.size());
    while (keep > 0 && !held_.ends_with(std::string_view(want).substr(0, keep))) --keep;
    give(held_.size() - keep, take);
    return false;
  }
  give(at, take);
  if (!inside_) {
    held_.erase(0, want.size());
    inside_ = true;
    take({Piece::Kind::begun});
    return true;
  }
  const std::size_t end = held_.find('\n', want.size());
  if (end == held_.npos && held_.size() < want.size() + kMaxStatusBytes) return false;
  Piece ended{Piece::Kind::ended};
  const char* digits = held_.data() + want.size();
  const auto read =
      std::from_chars(digits, held_.data() + std::min(end, held_.size()), ended.status);
  if (read.ec != std::errc{} && read.ptr != digits) ended.status = 1;
  ended.status &= 0xff;
  held_.erase(0, end == held_.npos ? want.size() : end + 1);
  mark_.reset();
  inside_ = false;
  take(ended);
  return true;
}

}  // namespace sortie::launcher
