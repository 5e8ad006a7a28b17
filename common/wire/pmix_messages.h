// PMIx for the ranks of a host, relayed between sortie-pmix, runner and launcher. Included by
// message.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sortie::wire {

/// runner -> sortie-pmix, first message.
struct PmixSetup {
  std::string nspace;  // unique per run and attempt
  std::string host;
  std::vector<std::string> node_hosts;
  std::vector<std::string> node_ranks;
  std::uint32_t world_size = 0;
  std::vector<std::uint32_t> local_ranks;
  std::string tmp_dir;  // 0700, made and removed by the runner
};

/// sortie-pmix -> runner: environment variables to add for the local ranks.
struct PmixReady {
  std::string version;
  std::vector<std::string>
      env;  // "NAME=value" for all ranks; those after a "#rank N" line are for that rank
};

/// This host has reached a fence and contributes its blob. The launcher answers all participating
/// hosts with PmixFenceDone.
struct PmixFence {
  std::string key;               // participants and sequence number; equal on all hosts
  std::uint32_t node_count = 0;  // number of participating hosts
  std::string data;
};
struct PmixFenceDone {
  std::string key;
  std::int32_t status = 0;  // 0 or a PMIx error
  std::string data;         // all blobs, concatenated
};

/// Direct modex: a request for data of a rank on another host, and the answer.
struct PmixModexRequest {
  std::uint64_t id = 0;
  std::uint32_t rank = 0;
  std::string key;              // the answer waits until the rank has committed it; empty = any
  std::uint32_t timeout_s = 0;  // PMIX_TIMEOUT; 0 = none
};
struct PmixModexReply {
  std::uint64_t id = 0;
  std::uint32_t rank = 0;
  std::int32_t status = 0;
  std::string data;
};

/// A rank called MPI_Abort (or PMIx_Abort).
struct PmixAbort {
  std::uint32_t rank = 0;
  std::int32_t status = 0;
  std::string message;
};

// ---- publish, lookup, unpublish: the launcher stores the names ---------------------------------

/// Names are per job. The requester chooses `id`; the answer repeats it. restore: tells a launcher
/// that has adopted the job what `rank` of this host published before. It has no answer; the last
/// restore of a host has no keys.
struct PmixNames {
  enum class Action : std::uint8_t { publish = 1, lookup = 2, unpublish = 3, restore = 4 };
  std::uint64_t id = 0;
  std::uint32_t rank = 0;  // the rank that makes the request
  Action action = Action::lookup;
  std::uint8_t wait = 0;  // lookup, 1: answer once all keys are published
  std::vector<std::string> keys;
  std::vector<std::string> values;  // publish: one per key
};
struct PmixNamesDone {
  std::uint64_t id = 0;
  std::int32_t status = 0;           // 0 or a PMIx error
  std::vector<std::uint32_t> ranks;  // lookup: the publishing rank, per key
  std::vector<std::string> keys;
  std::vector<std::string> values;
};

/// A message for the user, to be shown once: a rank asked PMIx for something that Sortie lacks.
struct PmixNotice {
  std::uint32_t rank = 0;
  std::string text;
};

/// runner -> sortie-pmix: the processes of the rank have ended with exit code 0. The answer is the
/// same message: whether the rank has initialised MPI (or PMIx) and not finalized it since.
struct PmixExited {
  std::uint32_t rank = 0;
  std::uint8_t not_finalized = 0;
};

}  // namespace sortie::wire
