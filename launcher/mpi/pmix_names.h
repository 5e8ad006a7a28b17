// Names that the ranks of an MPI job publish and look up (MPI_Publish_name, MPI_Lookup_name), kept
// for the whole job. Pure and bounded state machine: takes questions, returns the answers to send.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/wire/message.h"
#include "launcher/mpi/pmix_relay.h"

namespace sortie::launcher {

class PmixNameTable {
 public:
  /// Beyond these limits a rank gets PMIX_ERR_OUT_OF_RESOURCE.
  static constexpr std::size_t kMaxNames = 65536;
  static constexpr std::size_t kMaxBytes = 64u << 20;       // total of names and values
  static constexpr std::size_t kMaxAnswerBytes = 8u << 20;  // per lookup
  static constexpr std::size_t kMaxWaiting = 65536;         // lookups that wait for a name
  static constexpr std::size_t kMaxAnswered = 4096;         // answers kept per host

  /// Returns the answers to this question, and to lookups that have waited for the names that it
  /// publishes. The caller has checked that `host` owns the rank.
  std::vector<PmixRelay::Outgoing> on_question(std::size_t host, wire::PmixNames question);

  /// Keeps answers, because hosts may reconnect: a question that a host repeats (with the same ID,
  /// because the answer was lost) then takes effect only once. Call before the first question.
  void keep_answers() { keeping_ = true; }

  /// This launcher has adopted the job: questions wait until `hosts` hosts have reported what their
  /// ranks had published.
  void await_restored(std::size_t hosts) { restoring_ = hosts; }

 private:
  struct Entry {
    std::uint32_t rank = 0;
    std::string value;
  };
  struct Waiting {
    std::size_t host = 0;
    wire::PmixNames question;
  };
  std::int32_t publish(const wire::PmixNames& question);
  std::int32_t unpublish(const wire::PmixNames& question);
  wire::PmixNamesDone look_up(const wire::PmixNames& question) const;
  std::vector<PmixRelay::Outgoing> restore(std::size_t host, const wire::PmixNames& names);
  std::vector<PmixRelay::Outgoing> answer_question(std::size_t host, wire::PmixNames question);
  std::int32_t change(std::size_t host, const wire::PmixNames& question);
  bool has_all(const std::vector<std::string>& keys) const;

  std::map<std::string, Entry> names_;
  std::vector<Waiting> waiting_;
  std::vector<Waiting> held_;  // questions that wait until names are restored
  struct Answered {
    std::map<std::uint64_t, std::int32_t> statuses;  // of publish and unpublish, by question ID
    std::deque<std::uint64_t> ids;                   // oldest first
  };
  std::map<std::size_t, Answered> answered_;  // by host
  bool keeping_ = false;
  std::size_t restoring_ = 0;
  std::set<std::size_t> restored_;
  std::size_t bytes_ = 0;
};

}  // namespace sortie::launcher
