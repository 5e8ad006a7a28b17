#include "tests/support/memory_links.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>

namespace sortie::testing {
namespace {

using Clock = std::chrono::steady_clock;

/// SplitMix64 (Steele et al. 2014): a function of its argument.
std::uint64_t mixed(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15ull;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

std::uint64_t hash_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::pair<std::string, std::string> pair_of(const std::string& one, const std::string& other) {
  return one < other ? std::pair{one, other} : std::pair{other, one};
}

}  // namespace

class MemoryNetwork::Links final : public trainer::outer::SiteLinks {
 public:
  Links(MemoryNetwork& network, std::size_t number) : network_(network), number_(number) {}
  ~Links() override {
    const std::lock_guard lock(network_.mutex_);
    network_.leaders_[number_].dead = true;
    network_.drop_before(number_, UINT64_MAX);
    network_.changed_.notify_all();
  }

  std::string address() const override {
    const std::lock_guard lock(network_.mutex_);
    return own().address;
  }
  Result<> open(const training::OuterExchange& order, std::size_t self) override;
  Result<> send(std::size_t peer, std::uint32_t tag, std::span<const std::byte> bytes) override;
  Result<> receive(std::size_t peer, std::uint32_t tag, std::span<std::byte> bytes) override;
  Result<> flush() override;
  void cancel() override {
    const std::lock_guard lock(network_.mutex_);
    cancelled_ = true;
    network_.changed_.notify_all();
  }
  trainer::outer::LinkCounters counters() const override {
    const std::lock_guard lock(network_.mutex_);
    return own().counters;
  }

 private:
  Leader& own() const { return network_.leaders_[number_]; }
  Result<> usable() const;
  Result<std::size_t> leader_of(const training::OuterMember& member) const;
  std::unexpected<Error> lost(std::size_t leader, std::string_view why) const {
    return fail(ErrorCode::lost, fmt::format("site {}: link to site {} lost: {}", own().site,
                                             network_.leaders_[leader].site, why));
  }

  MemoryNetwork& network_;
  const std::size_t number_;
  std::vector<std::size_t> peers_;  // leader of each member
  bool cancelled_ = false;
};

Result<> MemoryNetwork::Links::usable() const {
  if (own().dead)
    return fail(ErrorCode::interrupted, fmt::format("site {}: it was killed", own().site));
  if (cancelled_)
    return fail(ErrorCode::interrupted, fmt::format("site {}: exchange cancelled", own().site));
  return {};
}

Result<std::size_t> MemoryNetwork::Links::leader_of(const training::OuterMember& member) const {
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < network_.leaders_.size(); ++i) {
    const Leader& leader = network_.leaders_[i];
    if (member.address.empty() ? leader.site == member.site && leader.part == own().part
                               : leader.address == member.address)
      found = i;  // the last one: a site that was revived
  }
  if (!found || network_.leaders_[*found].dead)
    return fail(ErrorCode::lost, fmt::format("site {}: no link to site {}: nobody is at '{}'",
                                             own().site, member.site, member.address));
  return *found;
}

Result<> MemoryNetwork::Links::open(const training::OuterExchange& order, std::size_t self) {
  const std::lock_guard lock(network_.mutex_);
  cancelled_ = false;
  SORTIE_TRY(usable());
  if (order.epoch <= own().epoch)
    return fail(ErrorCode::protocol, fmt::format("site {}: epoch {} is not after epoch {}",
                                                 own().site, order.epoch, own().epoch));
  own().epoch = order.epoch;
  network_.drop_before(number_, order.epoch);
  network_.changed_.notify_all();
  peers_.assign(order.members.size(), number_);
  for (std::size_t i = 0; i < order.members.size(); ++i) {
    if (i == self) continue;
    SORTIE_ASSIGN_OR_RETURN(peers_[i], leader_of(order.members[i]));
    if (network_.cut_off(own().site, order.members[i].site)) return lost(peers_[i], "it is cut");
  }
  return {};
}

Result<> MemoryNetwork::Links::send(std::size_t peer, std::uint32_t tag,
                                    std::span<const std::byte> bytes) {
  const std::lock_guard lock(network_.mutex_);
  SORTIE_TRY(usable());
  const std::size_t to = peers_.at(peer);
  Plan& plan = network_.plans_[own().site];
  const std::uint64_t number = plan.sent++;
  if (plan.kill_at && number >= *plan.kill_at) {
    plan.kill_at.reset();
    network_.bury(own().site);
    return usable();
  }
  if (network_.leaders_[to].dead) return lost(to, "it is gone");
  if (network_.cut_off(own().site, network_.leaders_[to].site)) return lost(to, "it is cut");
  if (network_.options_.on_send)
    network_.options_.on_send(own().site, network_.leaders_[to].site, bytes.size());
  own().counters.payload_sent += bytes.size();
  own().counters.wire_sent += bytes.size();
  const std::uint64_t random =
      mixed(network_.options_.seed ^ mixed(number_ << 32 | network_.messages_++));
  Message message{bytes, {}, hash_of(bytes), (random & 1) != 0, false, Clock::now()};
  if (message.buffered) {
    message.copy.assign(bytes.begin(), bytes.end());
    message.bytes = message.copy;
  }
  message.corrupt = plan.corrupt_at == number;
  const auto limit = static_cast<std::uint64_t>(network_.options_.max_delay.count()) + 1;
  message.due += std::chrono::microseconds((random >> 1) % limit);
  network_.boxes_[{to, number_, own().epoch, tag}].push_back(std::move(message));
  network_.changed_.notify_all();
  return {};
}

Result<> MemoryNetwork::Links::receive(std::size_t peer, std::uint32_t tag,
                                       std::span<std::byte> bytes) {
  std::unique_lock lock(network_.mutex_);
  const Time until = Clock::now() + network_.options_.silence;
  const std::size_t from = peers_.at(peer);
  const Key key{number_, from, own().epoch, tag};
  while (true) {
    SORTIE_TRY(usable());
    const auto box = network_.boxes_.find(key);
    const Leader& sender = network_.leaders_[from];
    Time wake = until;
    if (box != network_.boxes_.end()) {
      Message& message = box->second.front();
      const Time now = Clock::now();
      if (message.due <= now && !network_.stalled(key)) {
        if (message.bytes.size() != bytes.size())
          return fail(ErrorCode::protocol,
                      fmt::format("site {}: site {} sent {} bytes, expected {}", own().site,
                                  sender.site, message.bytes.size(), bytes.size()));
        if (message.corrupt || hash_of(message.bytes) != message.hash)
          return fail(ErrorCode::protocol,
                      fmt::format("site {}: a message of site {} has a wrong checksum", own().site,
                                  sender.site));
        std::ranges::copy(message.bytes, bytes.begin());
        own().counters.payload_received += bytes.size();
        own().counters.wire_received += bytes.size();
        box->second.pop_front();
        if (box->second.empty()) network_.boxes_.erase(box);
        network_.changed_.notify_all();
        return {};
      }
      if (!network_.stalled(key)) wake = std::min(wake, message.due);
    } else if (sender.dead) {
      return lost(from, "it is gone");
    } else if (network_.cut_off(own().site, sender.site)) {
      return lost(from, "it is cut");
    } else if (sender.epoch > key.epoch) {
      return lost(from, fmt::format("it has gone on to epoch {}", sender.epoch));
    }
    if (Clock::now() >= until) return lost(from, "it was silent too long");
    network_.changed_.wait_until(lock, wake);
  }
}

Result<> MemoryNetwork::Links::flush() {
  std::unique_lock lock(network_.mutex_);
  const Time until = Clock::now() + network_.options_.silence;
  while (true) {
    SORTIE_TRY(usable());
    std::optional<std::size_t> waits_for;
    for (const auto& [key, box] : network_.boxes_) {
      if (key.from != number_) continue;
      if (!std::ranges::all_of(box, [](const Message& one) { return one.buffered; }))
        waits_for = key.to;
    }
    if (!waits_for) return {};
    if (network_.leaders_[*waits_for].dead) return lost(*waits_for, "it is gone");
    if (network_.cut_off(own().site, network_.leaders_[*waits_for].site))
      return lost(*waits_for, "it is cut");
    if (Clock::now() >= until) return lost(*waits_for, "it takes no messages");
    network_.changed_.wait_until(lock, until);
  }
}

MemoryNetwork::MemoryNetwork(MemoryNetworkOptions options) : options_(std::move(options)) {}

std::unique_ptr<trainer::outer::SiteLinks> MemoryNetwork::links(const std::string& site,
                                                                std::int64_t part) {
  const std::lock_guard lock(mutex_);
  const std::size_t number = leaders_.size();
  Leader& leader = leaders_.emplace_back();
  leader.site = site;
  leader.part = part;
  leader.address = fmt::format("127.0.0.1:{}", number + 1);
  return std::make_unique<Links>(*this, number);
}

void MemoryNetwork::bury(const std::string& site) {
  for (std::size_t i = 0; i < leaders_.size(); ++i) {
    if (leaders_[i].site != site) continue;
    leaders_[i].dead = true;
    // Its memory may be freed now, but what it has sent still arrives.
    for (auto& [key, box] : boxes_) {
      if (key.from != i) continue;
      for (Message& message : box) {
        if (message.buffered) continue;
        message.copy.assign(message.bytes.begin(), message.bytes.end());
        message.bytes = message.copy;
        message.buffered = true;
      }
    }
    std::erase_if(boxes_, [&](const auto& box) { return box.first.to == i; });
  }
  changed_.notify_all();
}

void MemoryNetwork::drop_before(std::size_t leader, std::uint64_t epoch) {
  std::erase_if(boxes_, [&](const auto& box) {
    const Key& key = box.first;
    return (key.to == leader || key.from == leader) && key.epoch < epoch;
  });
}

bool MemoryNetwork::cut_off(const std::string& one, const std::string& other) const {
  return cuts_.contains(pair_of(one, other));
}

bool MemoryNetwork::stalled(const Key& key) const {
  return stalled_.contains(leaders_[key.from].site) || stalled_.contains(leaders_[key.to].site);
}

void MemoryNetwork::kill(const std::string& site) {
  const std::lock_guard lock(mutex_);
  bury(site);
}

void MemoryNetwork::kill_at(const std::string& site, std::uint64_t message) {
  const std::lock_guard lock(mutex_);
  Plan& plan = plans_[site];
  plan.kill_at = plan.sent + message;
}

void MemoryNetwork::corrupt_at(const std::string& site, std::uint64_t message) {
  const std::lock_guard lock(mutex_);
  Plan& plan = plans_[site];
  plan.corrupt_at = plan.sent + message;
}

void MemoryNetwork::cut(const std::string& one, const std::string& other) {
  const std::lock_guard lock(mutex_);
  cuts_.insert(pair_of(one, other));
  changed_.notify_all();
}

void MemoryNetwork::mend(const std::string& one, const std::string& other) {
  const std::lock_guard lock(mutex_);
  cuts_.erase(pair_of(one, other));
}

void MemoryNetwork::stall(const std::string& site) {
  const std::lock_guard lock(mutex_);
  stalled_.insert(site);
}

void MemoryNetwork::resume(const std::string& site) {
  const std::lock_guard lock(mutex_);
  stalled_.erase(site);
  changed_.notify_all();
}

}  // namespace sortie::testing
