// Fences and direct modex of an MPI job, relayed between the PMIx servers of its hosts. Pure state:
// takes messages, says which messages go where.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "common/wire/message.h"

namespace sortie::launcher {

class PmixRelay {
 public:
  /// One message for all of `hosts`: it is encoded once, however many they are.
  struct Outgoing {
    std::vector<std::size_t> hosts;
    wire::Message message;
  };

  /// rank_host[r] = index of the host that holds rank r. Ids of requests begin above `first_id`:
  /// one launcher's must not be another's.
  explicit PmixRelay(std::vector<std::size_t> rank_host, std::uint64_t first_id = 0);

  /// The answers to all participants once the last one is in; before that nothing. A fence that can
  /// not come true (hosts disagree on it, data too large for a frame, a host with more open fences
  /// or data in them than any MPI has) is answered with an error.
  std::vector<Outgoing> on_fence(std::size_t host, wire::PmixFence fence);
  /// Ids are per host; on the way they get one of ours.
  std::vector<Outgoing> on_modex_request(std::size_t host, wire::PmixModexRequest request);
  std::vector<Outgoing> on_modex_reply(std::size_t host, wire::PmixModexReply reply);

  /// Hosts may be reached again over a new connection: then they ask again what they have no answer
  /// to. The last fences are kept from now on, up to kMaxEndedFences and kMaxEndedBytes.
  void keep_ended_fences() { keeping_ = true; }
  /// `host` has a new connection: what it was asked and may not have got.
  std::vector<Outgoing> on_reconnected(std::size_t host) const;

  static constexpr std::size_t kMaxEndedFences = 16, kMaxEndedBytes = 64u << 20;

  /// "fence 12: 3 of 4 hosts" for every fence that waits; for messages about stuck starts.
  std::vector<std::string> waiting() const;

 private:
  struct Fence {
    std::map<std::size_t, std::string> data;  // by host
    std::uint32_t node_count = 0;
  };
  struct Request {
    std::size_t host = 0, asked = 0;
    wire::PmixModexRequest request;  // as the host sent it
  };
  /// What a host has made this relay keep: bounded, whatever the host sends.
  struct Held {
    std::size_t fences = 0, bytes = 0, requests = 0;
  };
  void keep_ended(wire::PmixFenceDone done);
  std::vector<Outgoing> end_fence(const std::string& key, std::int32_t status);

  std::vector<std::size_t> rank_host_;
  std::size_t num_hosts_ = 0;
  std::map<std::string, Fence> fences_;
  std::map<std::uint64_t, Request> requests_;
  std::deque<wire::PmixFenceDone> ended_;  // the latest last
  std::size_t ended_bytes_ = 0;
  bool keeping_ = false;
  std::map<std::size_t, Held> held_;  // by host
  std::uint64_t next_request_ = 1;
};

}  // namespace sortie::launcher
