#include "launcher/mpi/pmix_relay.h"

#include <fmt/core.h>

#include <algorithm>

#include "common/wire/frame.h"
#include "launcher/mpi/pmix_status.h"

namespace sortie::launcher {

namespace {
// Space in a frame for the other fields of PmixFenceDone.
constexpr std::size_t kFrameRoom = 64;
// Limits per host: an MPI has one or two open fences, and one request for each rank that it talks
// to.
constexpr std::size_t kMaxOpenFences = 1024, kMaxHeldBytes = 64u << 20;
constexpr std::size_t kMaxOpenRequests = 1u << 20;
constexpr std::size_t kMaxKeyBytes = 511;  // PMIX_MAX_KEYLEN

wire::PmixModexRequest with_id(wire::PmixModexRequest request, std::uint64_t id) {
  request.id = id;
  return request;
}
}  // namespace

PmixRelay::PmixRelay(std::vector<std::size_t> rank_host, std::uint64_t first_id)
    : rank_host_(std::move(rank_host)), next_request_(first_id + 1) {
  for (const std::size_t host : rank_host_) num_hosts_ = std::max(num_hosts_, host + 1);
}

std::vector<PmixRelay::Outgoing> PmixRelay::on_fence(std::size_t host, wire::PmixFence fence) {
  // Repeated after a reconnect: the answer was lost.
  const auto ended = std::ranges::find(ended_, fence.key, &wire::PmixFenceDone::key);
  if (ended != ended_.end()) return {{{host}, *ended}};
  Fence& open = fences_[fence.key];
  const bool agreed = open.data.empty() || open.node_count == fence.node_count;
  open.node_count = fence.node_count;
  Held& held = held_[host];
  const auto [entry, is_new] = open.data.try_emplace(host);
  if (is_new)
    ++held.fences;
  else
    held.bytes -= fence.key.size() + entry->second.size();
  entry->second = std::move(fence.data);
  held.bytes += fence.key.size() + entry->second.size();
  if (held.fences > kMaxOpenFences || held.bytes > kMaxHeldBytes)
    return end_fence(fence.key, kPmixErrOutOfResource);
  if (!agreed || open.node_count == 0 || open.node_count > num_hosts_)
    return end_fence(fence.key, kPmixErrBadParam);
  std::size_t bytes = fence.key.size() + kFrameRoom;
  for (const auto& [from, data] : open.data) bytes += data.size();
  if (bytes > wire::kMaxPayloadBytes) return end_fence(fence.key, kPmixErrOutOfResource);
  if (open.data.size() < open.node_count) return {};
  return end_fence(fence.key, 0);
}

std::vector<PmixRelay::Outgoing> PmixRelay::end_fence(const std::string& key, std::int32_t status) {
  const Fence& fence = fences_[key];
  wire::PmixFenceDone done{key, status, {}};
  if (status == 0)
    for (const auto& [from, data] : fence.data) done.data += data;
  std::vector<std::size_t> hosts;
  for (const auto& [to, data] : fence.data) {
    hosts.push_back(to);
    --held_[to].fences;
    held_[to].bytes -= key.size() + data.size();
  }
  fences_.erase(key);
  if (keeping_) keep_ended(done);
  std::vector<Outgoing> out;
  out.push_back({std::move(hosts), std::move(done)});
  return out;
}

void PmixRelay::keep_ended(wire::PmixFenceDone done) {
  ended_bytes_ += done.data.size();
  ended_.push_back(std::move(done));
  while (ended_.size() > kMaxEndedFences || ended_bytes_ > kMaxEndedBytes) {
    ended_bytes_ -= ended_.front().data.size();
    ended_.pop_front();
  }
}

std::vector<PmixRelay::Outgoing> PmixRelay::on_reconnected(std::size_t host) const {
  std::vector<Outgoing> out;
  for (const auto& [id, request] : requests_)
    if (request.asked == host) out.push_back({{host}, with_id(request.request, id)});
  return out;
}

std::vector<PmixRelay::Outgoing> PmixRelay::on_modex_request(std::size_t host,
                                                             wire::PmixModexRequest request) {
  if (request.rank >= rank_host_.size())
    return {{{host}, wire::PmixModexReply{request.id, request.rank, kPmixErrNotFound, {}}}};
  if (request.key.size() > kMaxKeyBytes)
    return {{{host}, wire::PmixModexReply{request.id, request.rank, kPmixErrBadParam, {}}}};
  Held& held = held_[host];
  if (held.requests >= kMaxOpenRequests || held.bytes + request.key.size() > kMaxHeldBytes)
    return {{{host}, wire::PmixModexReply{request.id, request.rank, kPmixErrOutOfResource, {}}}};
  ++held.requests;
  held.bytes += request.key.size();
  const std::uint64_t id = next_request_++;
  const std::size_t asked = rank_host_[request.rank];
  requests_[id] = {host, asked, request};
  return {{{asked}, with_id(std::move(request), id)}};
}

std::vector<PmixRelay::Outgoing> PmixRelay::on_modex_reply(std::size_t host,
                                                           wire::PmixModexReply reply) {
  const auto it = requests_.find(reply.id);
  // Already answered, unknown, or not a request to this host.
  if (it == requests_.end() || it->second.asked != host) return {};
  const Request request = std::move(it->second);
  requests_.erase(it);
  Held& held = held_[request.host];
  --held.requests;
  held.bytes -= request.request.key.size();
  reply.id = request.request.id;
  return {{{request.host}, std::move(reply)}};
}

std::vector<std::string> PmixRelay::waiting() const {
  std::vector<std::string> out;
  for (const auto& [key, fence] : fences_)
    out.push_back(
        fmt::format("fence {}: {} of {} hosts", key, fence.data.size(), fence.node_count));
  return out;
}

}  // namespace sortie::launcher
