#include "runner/health/links.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <utility>

#include "common/base/fd.h"

namespace sortie::runner::health {
namespace {

namespace fs = std::filesystem;
using sortie::health::Finding;
using sortie::health::Kind;

/// First bytes of a small file in /sys; empty if it can not be read.
std::string sys_text(const fs::path& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 64> bytes;
  const ssize_t count = file ? ::read(file.get(), bytes.data(), bytes.size()) : -1;
  return count > 0 ? std::string(bytes.data(), static_cast<std::size_t>(count)) : std::string();
}

std::uint64_t sys_number(const fs::path& path) {
  const std::string text = sys_text(path);
  std::uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    paths.push_back(it->path());
  return paths;
}

Finding of_link(Kind kind, double value = 0) {
  Finding finding{.kind = kind, .source = "sysfs"};
  finding.value = value;
  return finding;
}

}  // namespace

std::vector<Finding> LinkState::look(const LinkLook& look, double now) {
  std::vector<Finding> found;
  const std::uint64_t downs = last_ && look.downs > last_->downs ? look.downs - last_->downs : 0;
  last_ = look;
  while (!downs_.empty() && now - downs_.front() > kFlapSeconds) downs_.pop_front();
  // The first sample contains a history of months, which is not counted.
  for (std::uint64_t i = 0; i < std::min(downs, kFlaps); ++i) downs_.push_back(now);
  if (downs_.size() >= kFlaps) {
    found.push_back(of_link(Kind::link_flap, static_cast<double>(downs_.size())));
    downs_.clear();
  } else if (downs > 0 && look.up) {
    found.push_back(of_link(Kind::link_blip));
  }
  if (look.up) {
    // It was down in the last sample, and not for long enough to be reported as down.
    if (down_since_ && !down_told_ && found.empty()) found.push_back(of_link(Kind::link_blip));
    was_up_ = true;
    down_since_.reset();
    down_told_ = false;
    return found;
  }
  if (!was_up_) return found;
  if (!down_since_) down_since_ = now;
  if (now - *down_since_ >= kDownSeconds && !std::exchange(down_told_, true))
    found.push_back(of_link(Kind::link_down, now - *down_since_));
  return found;
}

void Links::look_at_networks(std::map<std::string, LinkLook>& found) const {
  std::error_code ignored;
  for (const fs::path& path : entries(root_ + "/sys/class/net")) {
    if (!fs::exists(path / "device", ignored) && !fs::exists(path / "bonding", ignored)) continue;
    // `carrier` of a link that an administrator disabled can not be read; such a link is ignored.
    const std::string carrier = sys_text(path / "carrier");
    if (carrier.empty()) continue;
    const std::string counted = sys_text(path / "carrier_down_count");
    found[path.filename().string()] = {carrier.front() == '1',
                                       counted.empty() ? sys_number(path / "carrier_changes") / 2
                                                       : sys_number(path / "carrier_down_count")};
  }
}

/// InfiniBand ports have no network device with a carrier unless IP runs over them.
void Links::look_at_infiniband(std::map<std::string, LinkLook>& found) const {
  for (const fs::path& device : entries(root_ + "/sys/class/infiniband"))
    for (const fs::path& port : entries(device / "ports")) {
      const std::string state = sys_text(port / "state");  // "4: ACTIVE"
      if (state.empty()) continue;
      found[device.filename().string() + ":" + port.filename().string()] = {
          state.front() == '4', sys_number(port / "counters" / "link_downed")};
    }
}

std::vector<Finding> Links::look(double now) {
  std::map<std::string, LinkLook> looks;
  look_at_networks(looks);
  look_at_infiniband(looks);
  std::erase_if(links_, [&](const auto& link) { return !looks.contains(link.first); });
  std::vector<Finding> all;
  for (const auto& [name, look] : looks)
    for (Finding& finding : links_[name].look(look, now)) {
      finding.device = name;
      all.push_back(std::move(finding));
    }
  return all;
}

std::vector<std::string> Links::names() const {
  std::vector<std::string> names;
  for (const auto& [name, state] : links_) names.push_back(name);
  return names;
}

}  // namespace sortie::runner::health
