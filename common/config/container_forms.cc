#include "common/config/container_forms.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "common/base/split.h"
#include "common/config/characters.h"
#include "common/config/forms.h"
#include "common/config/text.h"

namespace sortie::config {
namespace {

constexpr std::string_view kLower = "abcdefghijklmnopqrstuvwxyz";

bool only(std::string_view text, std::string_view first, std::string_view second,
          std::string_view third = "") {
  return std::ranges::all_of(
      text, [&](char c) { return first.contains(c) || second.contains(c) || third.contains(c); });
}

/// "x is not one of a | b; did you mean "b"?" `otherwise` is the advice if no word is near.
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
      "core",   "cpu",   "data", "fsize",  "locks",  "memlock",    "msgqueue", "nice",
      "nofile", "nproc", "rss",  "rtprio", "rttime", "sigpending", "stack"};
  return kNames;
}

const std::vector<std::string_view>& capability_names() {
  static const std::vector<std::string_view> kNames = {"ALL",
                                                       "AUDIT_CONTROL",
                                                       "AUDIT_READ",
                                                       "AUDIT_WRITE",
                                                       "BLOCK_SUSPEND",
                                                       "BPF",
                                                       "CHECKPOINT_RESTORE",
                                                       "CHOWN",
                                                       "DAC_OVERRIDE",
                                                       "DAC_READ_SEARCH",
                                                       "FOWNER",
                                                       "FSETID",
                                                       "IPC_LOCK",
                                                       "IPC_OWNER",
                                                       "KILL",
                                                       "LEASE",
                                                       "LINUX_IMMUTABLE",
                                                       "MAC_ADMIN",
                                                       "MAC_OVERRIDE",
                                                       "MKNOD",
                                                       "NET_ADMIN",
                                                       "NET_BIND_SERVICE",
                                                       "NET_BROADCAST",
                                                       "NET_RAW",
                                                       "PERFMON",
                                                       "SETFCAP",
                                                       "SETGID",
                                                       "SETPCAP",
                                                       "SETUID",
                                                       "SYS_ADMIN",
                                                       "SYS_BOOT",
                                                       "SYS_CHROOT",
                                                       "SYS_MODULE",
                                                       "SYS_NICE",
                                                       "SYS_PACCT",
                                                       "SYS_PTRACE",
                                                       "SYS_RAWIO",
                                                       "SYS_RESOURCE",
                                                       "SYS_TIME",
                                                       "SYS_TTY_CONFIG",
                                                       "SYSLOG",
                                                       "WAKE_ALARM"};
  return kNames;
}

/// Parses a resource limit; -1 means unlimited.
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
  // The id of an image is a valid name too.
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
  const std::vector<std::string> parts = split(text, ':');
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
    return fmt::format(
        "{} is no limit; write a whole number, \"SOFT:HARD\", or -1 for none: {} = "
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

}  // namespace sortie::config
