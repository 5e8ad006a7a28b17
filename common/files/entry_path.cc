#include "common/files/entry_path.h"

#include <fmt/core.h>

#include <algorithm>

#include "common/base/printable.h"

namespace sortie::files {
namespace {

constexpr std::size_t kMaxName = 255;
constexpr std::size_t kMaxPath = 4000;
constexpr std::ptrdiff_t kMaxDepth = 200;

}  // namespace

std::string shown_path(std::string_view path) {
  constexpr std::size_t kMaxShown = 200;
  if (path.size() <= kMaxShown) return printable(path);
  return printable(path.substr(0, kMaxShown)) + "...";
}

Result<> check_entry_name(std::string_view name) {
  const char* why = nullptr;
  if (name.empty())
    why = "an empty name";
  else if (name == "." || name == "..")
    why = "a name that is no name";
  else if (name.size() > kMaxName)
    why = "a name of more than 255 bytes";
  else if (name.find('/') != std::string_view::npos || name.find('\0') != std::string_view::npos)
    why = "a name with '/' or NUL";
  else if (name.starts_with(kPartPrefix))
    why = "the name of an unfinished transfer";
  if (!why) return {};
  return fail(ErrorCode::data, fmt::format("'{}': {}", shown_path(name), why));
}

Result<> check_entry_path(std::string_view path) {
  if (path.size() > kMaxPath || std::ranges::count(path, '/') >= kMaxDepth)
    return fail(ErrorCode::data, fmt::format("'{}': a path that is too long", shown_path(path)));
  for (std::size_t at = 0;;) {
    const std::size_t end = std::min(path.find('/', at), path.size());
    if (auto checked = check_entry_name(path.substr(at, end - at)); !checked)
      return fail(ErrorCode::data,
                  fmt::format("path '{}': {}", shown_path(path), checked.error().message));
    if (end == path.size()) return {};
    at = end + 1;
  }
}

bool stays_inside(std::string_view path, std::string_view link_target) {
  if (link_target.empty() || link_target.starts_with('/')) return false;
  std::ptrdiff_t above = std::ranges::count(path, '/');  // folders between it and the root
  bool down = false;
  while (!link_target.empty()) {
    const std::size_t end = std::min(link_target.find('/'), link_target.size());
    const std::string_view name = link_target.substr(0, end);
    link_target.remove_prefix(std::min(end + 1, link_target.size()));
    if (name.empty() || name == ".") continue;
    if (name != "..") {
      down = true;
    } else if (down || --above < 0) {
      return false;
    }
  }
  return true;
}

bool entry_path_less(std::string_view a, std::string_view b) {
  return std::ranges::lexicographical_compare(a, b, [](char x, char y) {
    const auto rank = [](char c) { return c == '/' ? 0 : 1 + static_cast<unsigned char>(c); };
    return rank(x) < rank(y);
  });
}

std::string_view parent_of(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
}

std::string_view name_of(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

}  // namespace sortie::files
