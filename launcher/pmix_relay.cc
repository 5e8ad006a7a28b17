#include "launcher/pmix_relay.h"

#include <fmt/core.h>

namespace sortie::launcher {

std::vector<PmixRelay::Outgoing> PmixRelay::on_fence(std::size_t host, wire::PmixFence fence) {
  Fence& open = fences_[fence.key];
  open.node_count = fence.node_count;
  open.data[host] = std::move(fence.data);
  if (open.data.size() < open.node_count) return {};
  wire::PmixFenceDone done;
  done.key = fence.key;
  for (const auto& [from, data] : open.data) done.data += data;
  std::vector<Outgoing> out;
  for (const auto& [to, data] : open.data) out.push_back({to, done});
  fences_.erase(fence.key);
  return out;
}

std::vector<PmixRelay::Outgoing> PmixRelay::on_modex_request(std::size_t host,
                                                             wire::PmixModexRequest request) {
  if (request.rank >= rank_host_.size()) {
    constexpr std::int32_t kPmixErrNotFound = -46;
    return {{host, wire::PmixModexReply{request.id, request.rank, kPmixErrNotFound, {}}}};
  }
  const std::uint64_t id = next_request_++;
  requests_[id] = {host, request.id};
  return {{rank_host_[request.rank], wire::PmixModexRequest{id, request.rank}}};
}

std::vector<PmixRelay::Outgoing> PmixRelay::on_modex_reply(wire::PmixModexReply reply) {
  const auto it = requests_.find(reply.id);
  if (it == requests_.end()) return {};  // answered before, or never asked
  const Request request = it->second;
  requests_.erase(it);
  reply.id = request.id;
  return {{request.host, std::move(reply)}};
}

std::vector<std::string> PmixRelay::waiting() const {
  std::vector<std::string> out;
  for (const auto& [key, fence] : fences_)
    out.push_back(
        fmt::format("fence {}: {} of {} hosts", key, fence.data.size(), fence.node_count));
  return out;
}

}  // namespace sortie::launcher
