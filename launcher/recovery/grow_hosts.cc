#include "launcher/recovery/grow_hosts.h"

#include <algorithm>
#include <optional>

namespace sortie::launcher {
namespace {

using HostNames = std::vector<std::string>;

std::optional<std::size_t> slots_of(const HostPool& pool, const std::string& host) {
  const auto known = pool.slots.find(host);
  return known == pool.slots.end() ? std::nullopt : std::optional(known->second);
}

/// For each place the host that holds it; empty = free. A spare of an earlier attempt gets one of
/// the places that no host of the job holds, preferably one with the same number of slots: to ranks
/// such places are the same.
HostNames holders(const HostPool& pool, const HostNames& held, const HostNames& hosts) {
  HostNames out(pool.places.size());
  HostNames others;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const auto place = std::ranges::find(pool.places, held[i]);
    if (place == pool.places.end())
      others.push_back(hosts[i]);
    else
      out[static_cast<std::size_t>(place - pool.places.begin())] = hosts[i];
  }
  for (const std::string& host : others) {
    std::size_t at = out.size();
    for (std::size_t i = out.size(); i-- > 0;) {
      if (!out[i].empty()) continue;
      if (slots_of(pool, pool.places[i]) == slots_of(pool, host) || at == out.size()) at = i;
    }
    if (at < out.size()) out[at] = host;
  }
  return out;
}

}  // namespace

bool holds(const HostNames& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

bool fits_place(const HostPool& pool, const std::string& host, const std::string& place) {
  const auto has = slots_of(pool, host), needs = slots_of(pool, place);
  if (!has || !needs) return true;
  return holds(pool.places, host) ? *has == *needs : *has >= *needs;
}

Growth grow_hosts(const HostPool& pool, const HostNames& held, const HostNames& hosts,
                  HostNames joiners) {
  Growth growth{hosts, {}};
  const HostNames before = holders(pool, held, hosts);
  // The run has more hosts than places: nothing to grow.
  if (std::ranges::count_if(before, [](const std::string& host) { return !host.empty(); }) !=
      std::ranges::ssize(hosts))
    return growth;
  std::vector<std::pair<std::string, std::string>> found;
  const auto take = [&](const std::string& place, const HostNames::iterator& joiner) {
    found.emplace_back(*joiner, place);
    joiners.erase(joiner);
  };
  const auto is_taken = [&](const std::string& place) {
    return std::ranges::any_of(found, [&](const auto& one) { return one.second == place; });
  };
  for (std::size_t i = 0; i < before.size(); ++i)
    if (const auto own = std::ranges::find(joiners, pool.places[i]);
        before[i].empty() && own != joiners.end())
      take(pool.places[i], own);
  for (std::size_t i = 0; i < before.size(); ++i) {
    const std::string& place = pool.places[i];
    if (!before[i].empty() || is_taken(place)) continue;
    const auto joiner = std::ranges::find_if(
        joiners, [&](const std::string& host) { return fits_place(pool, host, place); });
    if (joiner != joiners.end()) take(place, joiner);
  }
  for (; !found.empty(); found.pop_back()) {
    HostNames now = before;
    HostNames places;
    for (std::size_t i = 0; i < now.size(); ++i) {
      for (const auto& [host, place] : found)
        if (place == pool.places[i]) now[i] = host;
      if (!now[i].empty()) places.push_back(pool.places[i]);
    }
    if (pool.legal && !pool.legal(places)) continue;
    std::erase_if(now, [](const std::string& host) { return host.empty(); });
    return {std::move(now), std::move(found)};
  }
  return growth;
}

}  // namespace sortie::launcher
