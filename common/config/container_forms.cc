#include "common/config/container_forms.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "common/config/forms.h"
#include "common/config/text.h"

namespace sortie::config {
namespace {

constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
constexpr std::string_view kLower = "abcdefghijklmnopqrstuvwxyz";
constexpr std::string_view kDigits = "0123456789";

bool only(std::string_view text, std::string_view first, std::string_view second,
          std::string_view third = "") {
  return std::ranges::all_of(
      text, [&](char c) { return first.contains(c) || second.contains(c) || third.contains(c); });
}

/// "x" is not one of a | b; did you mean "b"?
std::string not_one_of(std::string_view text, const std::vector<std::string_view>& words,
                       std::string_view otherwise) {
  const std::string_view near = nearest(text, words);
  return fmt::format("{} is not one of {}; {}", quote(shorten(text)), fmt::join(words, " | "),
                     near.empty() ? otherwise : fmt::format("did you mean \"{}\"?", near));
}

bool is_number(std::string_view text) {
  return !text.empty() && only(text, kDigits, "") && text.size() <= 10;
}

const std::vector<std::string_view>& ulimit_names() {
  static const std::vector<std::string_view> kNames = {
      "core",     "cpu",    "data",  "fsize",  "locks",  "memlock",    "msgqueue", "nice",
      "nofile",   "nproc",  "rss",   "rtprio", "rttime", "sigpending", "stack"};
  return kNames;
}

const std::vector<std::string_view>& capability_names() {
  static const std::vector<std::string_view> kNames = {
      "ALL",          "AUDIT_CONTROL",  "AUDIT_READ",      "AUDIT_WRITE",
      "BLOCK_SUSPEND", "BPF",           "CHECKPOINT_RESTORE", "CHOWN",
      "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER",         "FSETID",
      "IPC_LOCK",     "IPC_OWNER",      "KILL",            "LEASE",
      "LINUX_IMMUTABLE", "MAC_ADMIN",   "MAC_OVERRIDE",    "MKNOD",
      "NET_ADMIN",    "NET_BIND_SERVICE", "NET_BROADCAST", "NET_RAW",
      "PERFMON",      "SETFCAP",        "SETGID",          "SETPCAP",
      "SETUID",       "SYS_ADMIN",      "SYS_BOOT",        "SYS_CHROOT",
      "SYS_MODULE",   "SYS_NICE",       "SYS_PACCT",       "SYS_PTRACE",
      "SYS_RAWIO",    "SYS_RESOURCE",   "SYS_TIME",        "SYS_TTY_CONFIG",
      "SYSLOG",       "WAKE_ALARM"};
  return kNames;
}

/// A limit of a process: -1 is none.
bool parse_limit(std::string_view text, std::int64_t& value) {
  if (text == "unlimited") text = "-1";
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= -1;
}

}  // namespace

std::string check_engine(std::string_view text) {
  if (text.empty() || text == "docker" || text == "podman" || text == "containerd") return {};
  if (text == "nerdctl" || text == "ctr")
    return fmt::format("{} is how containerd is spoken to; write \"containerd\"", quote(text));
  return not_one_of(text, {"docker", "podman", "containerd"}, "write one of them");
}

std::string check_ipc(std::string_view text) {
  if (text.empty() || text == "private" || text == "host" || text == "shareable") return {};
  return not_one_of(text, {"private", "host", "shareable"}, "write one of them, or nothing");
}

std::string check_image(std::string_view text) {
  if (text.empty()) return {};
  const auto bad = [&](std::string_view why) {
    return fmt::format("{} {}", quote(shorten(text)), why);
  };
  constexpr std::string_view kForm =
      "is no name of an image; write one like \"trainer:1\" or \"registry:5000/team/trainer@sha256:"
      "...\"";
  if (text.size() > 512 || !only(text, kLetters, kDigits, "._-/:@") || text.starts_with('-') ||
      text.starts_with('/') || text.ends_with('/') || text.ends_with(':') || text.contains("//"))
    return bad(kForm);
  const std::size_t at = text.find('@');
  if (at != text.npos) {
    constexpr std::string_view kHash = "sha256:";
    const std::string_view digest = text.substr(at + 1);
    if (!digest.starts_with(kHash) || digest.size() != kHash.size() + 64 ||
        !only(digest.substr(kHash.size()), kDigits, "abcdef"))
      return bad("has no digest after '@'; write sha256: and its 64 hexadecimal digits");
  }
  // An id of an image is one too.
  std::string_view name = text.substr(0, at);
  if (name.starts_with("sha256:")) return {};
  const std::size_t slash = name.find('/');
  const std::string_view first = name.substr(0, slash);
  const bool has_registry =
      slash != name.npos && (first.find_first_of(".:") != first.npos || first == "localhost");
  std::string_view path = has_registry ? name.substr(slash + 1) : name;
  path = path.substr(0, path.find(':'));
  if (path.empty()) return bad(kForm);
  if (!only(path, kLower, kDigits, "._-/"))
    return bad("has capital letters in the image's name, which registries refuse; write it small");
  return {};
}

std::string check_engine_network(std::string_view text) {
  if (!text.empty() && only(text, kLetters, kDigits, "_.-") && text.front() != '-') return {};
  return fmt::format("{} is no network; write \"host\", \"none\" or a name of the engine's",
                     quote(shorten(text)));
}

std::string check_device(std::string_view text) {
  const std::vector<std::string> parts = split_items(text, ':');
  const bool cdi = text.contains('=') && !text.starts_with('/') && parts.size() == 1;
  if (cdi && only(text, kLetters, kDigits, "._-/=") && text.contains('/')) return {};
  const bool paths = parts[0].starts_with('/') && parts.size() <= 3 &&
                     (parts.size() < 2 || parts[1].starts_with('/') ||
                      (parts.size() == 2 && only(parts[1], "rwm", "")));
  const bool rights = parts.size() < 3 || (!parts[2].empty() && only(parts[2], "rwm", ""));
  if (paths && rights && !text.contains(',') && check_path(text).empty()) return {};
  return fmt::format(
      "{} is no device; write one like \"/dev/infiniband\" or \"/dev/fuse:/dev/fuse:rwm\"",
      quote(shorten(text)));
}

std::string check_ulimit(std::string_view name) {
  if (std::ranges::find(ulimit_names(), name) != ulimit_names().end()) return {};
  return not_one_of(name, ulimit_names(), "write one of them");
}

std::string check_ulimit_value(std::string_view name, std::string_view value) {
  const std::size_t colon = value.find(':');
  std::int64_t soft = 0, hard = 0;
  const bool good = parse_limit(value.substr(0, colon), soft) &&
                    (colon == value.npos || parse_limit(value.substr(colon + 1), hard));
  if (!good)
    return fmt::format("{} is no limit; write a whole number, \"SOFT:HARD\", or -1 for none: {} = "
                       "\"-1\"",
                       quote(shorten(value)), name);
  if (colon != value.npos && hard != -1 && (soft == -1 || soft > hard))
    return fmt::format("{} has a soft limit above the hard one; write \"{}:{}\"",
                       quote(shorten(value)), hard, hard);
  return {};
}

std::string_view capability_name(std::string_view text) {
  return text.starts_with("CAP_") ? text.substr(4) : text;
}

std::string check_capability(std::string_view text) {
  const std::string_view name = capability_name(text);
  if (std::ranges::find(capability_names(), name) != capability_names().end()) return {};
  std::string upper(name);
  for (char& c : upper)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  const std::string_view plain = capability_name(upper);
  const std::string_view near = nearest(plain, capability_names());
  return fmt::format("{} is no Linux capability; {}", quote(shorten(text)),
                     near.empty() ? "write one like \"SYS_PTRACE\" or \"IPC_LOCK\""
                                  : fmt::format("did you mean \"{}\"?", near));
}

std::string check_label(std::string_view name) {
  if (name.starts_with("sortie."))
    return fmt::format("{}: labels with sortie. are Sortie's own; use another name",
                       quote(shorten(name)));
  if (!name.empty() && only(name, kLetters, kDigits, "._/-") && name.front() != '-') return {};
  return fmt::format("{} is no name of a label; use letters, digits, '.', '_', '/' and '-'",
                     quote(shorten(name)));
}

std::string check_container_user(std::string_view text) {
  if (text.empty()) return {};
  const std::size_t colon = text.find(':');
  const auto good = [](std::string_view part) {
    return is_number(part) || (!part.empty() && only(part, kLetters, kDigits, "._-") &&
                               !kDigits.contains(part.front()) && part.front() != '-');
  };
  if (good(text.substr(0, colon)) && (colon == text.npos || good(text.substr(colon + 1))))
    return {};
  return fmt::format("{} is no user; write \"UID\", \"UID:GID\" or a name of the image",
                     quote(shorten(text)));
}

std::string check_inner_path(std::string_view text) {
  if (text.empty() || (text.starts_with('/') && check_path(text).empty())) return check_path(text);
  return fmt::format("{} is not absolute; write the path inside the container from its root",
                     quote(shorten(text)));
}

std::string check_size(std::string_view text) {
  if (text.empty()) return {};
  const auto bytes = parse_size(text);
  return bytes ? std::string() : bytes.error().message;
}

Result<std::uint64_t> parse_size(std::string_view text) {
  const std::size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string digits(text.substr(0, end));
  std::string unit;
  for (const char c : trim(text.substr(end)))
    unit += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  const auto bad = [&] {
    return fail(ErrorCode::config,
                fmt::format("{} is no size; write a number and a unit, like \"512MiB\" or \"16g\"",
                            quote(shorten(text))));
  };
  if (digits.empty() || digits.front() == '.' || digits.back() == '.' ||
      std::ranges::count(digits, '.') > 1 || digits.size() > 20)
    return bad();
  constexpr std::string_view kUnits = "bkmgtp";
  const std::size_t power = unit.empty() ? 0 : kUnits.find(unit.front());
  if (power == kUnits.npos) return bad();
  const std::string_view rest = unit.empty() ? "" : std::string_view(unit).substr(1);
  if (!rest.empty() && (power == 0 || (rest != "b" && rest != "ib"))) return bad();
  const double bytes = std::ldexp(std::strtod(digits.c_str(), nullptr), 10 * static_cast<int>(power));
  if (bytes < 1) return fail(ErrorCode::config, "a size of 0 bytes is none; leave it empty");
  if (bytes > 1e18)
    return fail(ErrorCode::config, fmt::format("{} is too large", quote(shorten(text))));
  return static_cast<std::uint64_t>(bytes);
}

std::string check_mount_options(std::string_view options) {
  const std::vector<std::string_view> known = {
      "rw",      "ro",      "z",     "Z",      "shared",   "rshared",    "slave",      "rslave",
      "private", "rprivate", "bind", "rbind",  "cached",   "delegated",  "consistent"};
  for (const std::string& option : split_items(options, ','))
    if (std::ranges::find(known, option) == known.end()) {
      const std::string_view near = nearest(option, {"rw", "ro", "shared", "slave", "private"});
      return fmt::format("{} is no option of a mount; {}", quote(shorten(option)),
                         near.empty() ? "write \"ro\", or leave it away"
                                      : fmt::format("did you mean \"{}\"?", near));
    }
  return {};
}

std::string check_mount(std::string_view text) {
  const std::vector<std::string> items = split_items(text, '\0');
  std::string shown;
  for (const std::string& item : items)
    shown += fmt::format("{}{}", shown.empty() ? "" : ", ", quote(item));
  const auto bad = [&](std::string_view why) { return fmt::format("[{}] {}", shown, why); };
  if (items.size() == 1)
    return bad("has one path; write [\"/host/path\", \"/container/path\"]");
  if (items.size() > 3)
    return bad("is no mount; write [\"/host/path\", \"/container/path\", \"ro\"]");
  for (const std::string& path : {items[0], items[1]}) {
    if (path.contains(':') || path.contains(','))
      return bad("has a path with ':' or ',', which engines take for their own; mount the folder "
                 "above it");
    if (!path.starts_with('/'))
      return bad(fmt::format("has the relative path {}; write it from the root",
                             quote(shorten(path))));
    if (const std::string error = check_path(path); !error.empty()) return error;
  }
  if (items[1] == "/") return bad("would hide the whole image; mount below /");
  if (items[1] == "/.sortie" || items[1].starts_with("/.sortie/"))
    return bad("has a place that Sortie uses itself; choose another one");
  return items.size() < 3 ? std::string() : check_mount_options(items[2]);
}

std::string join_items(const std::vector<std::string>& items) {
  std::string text;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) text += '\0';
    text += items[i];
  }
  return text;
}

std::vector<std::string> split_items(std::string_view text, char separator) {
  std::vector<std::string> items;
  for (;;) {
    const std::size_t at = text.find(separator);
    items.emplace_back(text.substr(0, at));
    if (at == text.npos) return items;
    text.remove_prefix(at + 1);
  }
}

}  // namespace sortie::config
