#include "launcher/copy/relay_chains.h"

#include <algorithm>

namespace sortie::launcher {

std::optional<std::size_t> RelayChains::attach(std::size_t host, bool lacks, bool serves) {
  const auto shortest = std::ranges::min_element(tails_, {}, &Tail::length);
  if (!lacks || shortest == tails_.end() || shortest->length >= max_length_) {
    if (serves) tails_.push_back({host, 1});
    return std::nullopt;
  }
  const std::size_t upstream = shortest->host;
  if (serves) *shortest = {host, shortest->length + 1};
  return upstream;
}

void RelayChains::remove(std::size_t host) {
  std::erase_if(tails_, [&](const Tail& tail) { return tail.host == host; });
}

}  // namespace sortie::launcher
