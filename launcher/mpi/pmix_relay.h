// Relays fences and direct modex of an MPI job between the PMIx servers of its hosts. Pure state
// machine: takes messages, returns the messages to send.
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
  /// One message for all of `hosts`; it is encoded only once.
  struct Outgoing {
    std::vector<std::size_t> hosts;
    wire::Message message;
  };

  /// rank_host[r] = index of the host of rank r. Request IDs begin above `first_id`, so that those
  /// of different launchers differ.
  explicit PmixRelay(std::vector<std::size_t> rank_host, std::uint64_t first_id = 0);

  /// Returns the answers to all participants once the last one has arrived; before that nothing. A
  /// fence that can not complete (hosts disagree on it, its data is too large for a frame, a host
  /// has more open fences or data than any MPI needs) is answered with an error.
  std::vector<Outgoing> on_fence(std::size_t host, wire::PmixFence fence);
  /// Request IDs are per host; relayed requests get an ID of this relay.
  std::vector<Outgoing> on_modex_request(std::size_t host, wire::PmixModexRequest request);
  std::vector<Outgoing> on_modex_reply(std::size_t host, wire::PmixModexReply reply);

  /// Keeps the latest finished fences, up to kMaxEndedFences and kMaxEndedBytes, because hosts may
  /// reconnect and then repeat requests without an answer.
  void keep_ended_fences() { keeping_ = true; }
  /// `host` has reconnected: returns the requests to it that are unanswered.
  std::vector<Outgoing> on_reconnected(std::size_t host) const;

  static constexpr std::size_t kMaxEndedFences = 16, kMaxEndedBytes = 64u << 20;

  /// "fence 12: 3 of 4 hosts" for each incomplete fence; for messages about a start that hangs.
  std::vector<std::string> waiting() const;

 private:
  struct Fence {
    std::map<std::size_t, std::string> data;  // by host
    std::uint32_t node_count = 0;
  };
  struct Request {
    std::size_t host = 0, asked = 0;
    wire::PmixModexRequest request;  // with the ID of the host
  };
  /// State kept on behalf of a host; bounded, whatever the host sends.
  struct Held {
    std::size_t fences = 0, bytes = 0, requests = 0;
  };
  void keep_ended(wire::PmixFenceDone done);
  std::vector<Outgoing> end_fence(const std::string& key, std::int32_t status);

  std::vector<std::size_t> rank_host_;
  std::size_t num_hosts_ = 0;
  std::map<std::string, Fence> fences_;
  std::map<std::uint64_t, Request> requests_;
  std::deque<wire::PmixFenceDone> ended_;  // oldest first
  std::size_t ended_bytes_ = 0;
  bool keeping_ = false;
  std::map<std::size_t, Held> held_;  // by host
  std::uint64_t next_request_ = 1;
};

}  // namespace sortie::launcher
