// Sizes and mounts of [runner.container], and lists of lists.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "common/base/split.h"
#include "common/config/container_forms.h"
#include "common/config/forms.h"
#include "common/config/text.h"

namespace sortie::config {

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
  const double bytes =
      std::ldexp(std::strtod(digits.c_str(), nullptr), 10 * static_cast<int>(power));
  if (bytes < 1)
    return fail(ErrorCode::config,
                "a size must be at least 1 byte; for the default leave the key empty");
  if (bytes > 1e18)
    return fail(ErrorCode::config, fmt::format("{} is too large", quote(shorten(text))));
  return static_cast<std::uint64_t>(bytes);
}

std::string check_mount_options(std::string_view options) {
  const std::vector<std::string_view> known = {
      "rw",      "ro",       "z",    "Z",     "shared", "rshared",   "slave",     "rslave",
      "private", "rprivate", "bind", "rbind", "cached", "delegated", "consistent"};
  for (const std::string& option : split(options, ','))
    if (std::ranges::find(known, option) == known.end()) {
      const std::string_view near = nearest(option, {"rw", "ro", "shared", "slave", "private"});
      return fmt::format("{} is no option of a mount; {}", quote(shorten(option)),
                         near.empty() ? "write \"ro\", or leave it away"
                                      : fmt::format("did you mean \"{}\"?", near));
    }
  return {};
}

std::string check_mount(std::string_view text) {
  const std::vector<std::string> items = split(text, '\0');
  std::string shown;
  for (const std::string& item : items)
    shown += fmt::format("{}{}", shown.empty() ? "" : ", ", quote(item));
  const auto bad = [&](std::string_view why) { return fmt::format("[{}] {}", shown, why); };
  if (items.size() == 1) return bad("has one path; write [\"/host/path\", \"/container/path\"]");
  if (items.size() > 3)
    return bad("is no mount; write [\"/host/path\", \"/container/path\", \"ro\"]");
  for (const std::string& path : {items[0], items[1]}) {
    if (path.contains(':') || path.contains(','))
      return bad(
          "has a path with ':' or ',', which engines take for their own; mount the folder "
          "above it");
    if (!path.starts_with('/'))
      return bad(
          fmt::format("has the relative path {}; write it from the root", quote(shorten(path))));
    if (std::string error = check_path(path); !error.empty()) return error;
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

}  // namespace sortie::config
