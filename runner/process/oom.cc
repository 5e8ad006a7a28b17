#include "runner/process/oom.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "common/base/atomic_file.h"
#include "runner/process/next_word.h"
#include "runner/process/own_mounts.h"

namespace sortie::runner::oom {
namespace {

/// Reads the number after "name " from lines of names and numbers. Returns false if there is none.
bool number_of(const std::string& path, std::string_view name, std::uint64_t& number) {
  const Result<std::string> content = read_file(path);
  if (!content) return false;
  std::string_view text = *content;
  while (!text.empty()) {
    std::string_view line = next_word(text, '\n');
    if (next_word(line, ' ') != name) continue;
    return std::from_chars(line.data(), line.data() + line.size(), number).ec == std::errc{};
  }
  return false;
}

bool has_item(std::string_view list, std::string_view wanted) {
  while (!list.empty())
    if (next_word(list, ',') == wanted) return true;
  return false;
}

struct Place {
  std::string mount_point, mount_root, path;
};

/// Finds the mount of the hierarchy (v2, or v1 with the memory controller) and our path in it.
bool find_place(std::string_view mounts, std::string_view self, bool v2, Place& place) {
  bool mounted = false;
  while (!mounted && !mounts.empty()) {
    std::string_view line = next_word(mounts, '\n');
    const std::size_t dash = line.find(v2 ? " - cgroup2 " : " - cgroup ");
    if (dash == std::string_view::npos) continue;
    const std::string_view options = line.substr(line.rfind(' ') + 1);
    if (!v2 && !has_item(options, "memory")) continue;
    for (int skipped = 0; skipped < 3; ++skipped) next_word(line, ' ');
    place.mount_root = next_word(line, ' ');
    place.mount_point = next_word(line, ' ');
    mounted = true;
  }
  while (mounted && !self.empty()) {
    std::string_view line = next_word(self, '\n');
    const std::string_view number = next_word(line, ':'), controllers = next_word(line, ':');
    if (v2 ? number != "0" : !has_item(controllers, "memory")) continue;
    if (place.mount_root != "/" && line.starts_with(place.mount_root))
      line.remove_prefix(place.mount_root.size());
    place.path = line == "/" ? "" : line;
    return true;
  }
  return false;
}

/// The mounts below `root`; for this machine itself, the text that was read once.
std::string mounts_of(const std::string& root) {
  return root.empty() ? own_mounts() : read_file(root + "/proc/self/mountinfo").value_or("");
}

/// Counter of the nearest group that has one, from our own group up to the mount.
std::optional<std::uint64_t> nearest(const std::string& root, const Place& place,
                                     const char* file) {
  std::string path = place.path;
  for (;;) {
    std::uint64_t count = 0;
    if (number_of(root + place.mount_point + path + '/' + file, "oom_kill", count)) return count;
    const std::size_t slash = path.rfind('/');
    if (slash == std::string::npos) return std::nullopt;
    path.resize(slash);
  }
}

}  // namespace

std::uint64_t kills_in(const std::string& folder) {
  std::uint64_t kills = 0;
  number_of(folder + "/memory.events", "oom_kill", kills);
  return kills;
}

Counters Counters::read(const std::string& root) {
  Counters counters;
  number_of(root + "/proc/vmstat", "oom_kill", counters.host);
  const std::string mounts = mounts_of(root);
  const Result<std::string> self = read_file(root + "/proc/self/cgroup");
  if (!self) return counters;
  Place place;
  if (find_place(mounts, *self, true, place))
    counters.group_v2 = nearest(root, place, "memory.events");
  if (find_place(mounts, *self, false, place))
    counters.group_v1 = nearest(root, place, "memory.oom_control");
  return counters;
}

Group::Group(pid_t pid, const std::string& root) {
  const std::string mounts = mounts_of(root);
  const Result<std::string> its = read_file(root + "/proc/" + std::to_string(pid) + "/cgroup");
  if (!its) return;
  Place place;
  if (find_place(mounts, *its, true, place)) v2_ = root + place.mount_point + place.path;
  if (find_place(mounts, *its, false, place)) v1_ = root + place.mount_point + place.path;
  kills_ = Before(kills());
}

std::uint64_t Group::kills() const {
  std::uint64_t v1 = 0;
  const std::uint64_t v2 = v2_.empty() ? 0 : kills_in(v2_);
  if (!v1_.empty()) number_of(v1_ + "/memory.oom_control", "oom_kill", v1);
  return std::max(v2, v1);
}

std::uint64_t Group::limit() const {
  for (const std::string& path : {v2_ + "/memory.max", v1_ + "/memory.limit_in_bytes"}) {
    if (path.starts_with("/memory.")) continue;
    std::uint64_t bytes = 0;
    const Result<std::string> text = read_file(path);
    if (!text) continue;
    const auto [end, bad] = std::from_chars(text->data(), text->data() + text->size(), bytes);
    // Without a limit, v2 contains "max" and v1 a huge number.
    if (bad == std::errc{} && bytes < (std::uint64_t{1} << 62)) return bytes;
  }
  return 0;
}

bool Counters::groups_rose_since(const Counters& before) const {
  return group_v2.value_or(0) > before.group_v2.value_or(0) ||
         group_v1.value_or(0) > before.group_v1.value_or(0);
}

bool Counters::rose_since(const Counters& before) const {
  return groups_rose_since(before) || host > before.host;
}

bool Counters::killed_here_since(const Counters& before) const {
  return group_v2 || group_v1 ? groups_rose_since(before) : host > before.host;
}

void Watch::tick() {
  before_ = latest_;
  latest_ = Counters::read();
  if (!own_.empty()) own_kills_.tick(kills_in(own_));
}

bool Watch::own_rose() const {
  return !own_.empty() && own_kills_.rose(kills_in(own_));
}

}  // namespace sortie::runner::oom
