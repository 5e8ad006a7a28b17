// PMIx for the ranks of a host, relayed: sortie-pmix <-> runner <-> launcher. Included by
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

/// sortie-pmix -> runner: per local rank (same order as local_ranks) the environment to add.
struct PmixReady {
  std::string version;
  std::vector<std::string>
      env;  // "NAME=value" for all ranks, and after each "#rank N" line for that rank
};

/// A fence that this host has reached, with its blob. Launcher answers PmixFenceDone to all of
/// them.
struct PmixFence {
  std::string key;               // participants and sequence number, equal on all hosts
  std::uint32_t node_count = 0;  // how many hosts take part
  std::string data;
};
struct PmixFenceDone {
  std::string key;
  std::int32_t status = 0;  // 0 or a PMIx error
  std::string data;         // all blobs, concatenated
};

/// Direct modex: data of a rank on another host is asked for, and the answer.
struct PmixModexRequest {
  std::uint64_t id = 0;
  std::uint32_t rank = 0;
  std::string key;              // the answer waits until the rank has committed it; empty: any
  std::uint32_t timeout_s = 0;  // PMIX_TIMEOUT; 0: none
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

// ---- publish, lookup, unpublish: the launcher keeps the names ----------------------------------

/// Names are the job's. `id` is the asker's own; the answer carries it. restore: to a launcher that
/// has adopted the job, what `rank` of this host published before; no answer; the last one of a
/// host has no keys.
struct PmixNames {
  enum class Action : std::uint8_t { publish = 1, lookup = 2, unpublish = 3, restore = 4 };
  std::uint64_t id = 0;
  std::uint32_t rank = 0;  // who asks
  Action action = Action::lookup;
  std::uint8_t wait = 0;  // lookup: answer when all are there
  std::vector<std::string> keys;
  std::vector<std::string> values;  // publish: one per key
};
struct PmixNamesDone {
  std::uint64_t id = 0;
  std::int32_t status = 0;           // 0 or a PMIx error
  std::vector<std::uint32_t> ranks;  // lookup: who published, per key
  std::vector<std::string> keys;
  std::vector<std::string> values;
};

/// Something that a person should read once: a rank asked PMIx for what Sortie does not do.
struct PmixNotice {
  std::uint32_t rank = 0;
  std::string text;
};

}  // namespace sortie::wire
