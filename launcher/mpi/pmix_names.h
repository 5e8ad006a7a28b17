// Names that the ranks of an MPI job publish and look up (MPI_Publish_name, MPI_Lookup_name), kept
// for the whole job. Pure state, bounded: takes questions, says which answers go where.
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
  /// Beyond these a rank gets PMIX_ERR_OUT_OF_RESOURCE.
  static constexpr std::size_t kMaxNames = 65536;
  static constexpr std::size_t kMaxBytes = 64u << 20;       // of all names and values
  static constexpr std::size_t kMaxAnswerBytes = 8u << 20;  // of one lookup
  static constexpr std::size_t kMaxWaiting = 65536;         // lookups that wait for a name
  static constexpr std::size_t kMaxAnswered = 4096;         // per host, to be answered again

  /// The answers to this question, and to lookups that have waited for what it publishes. `host`
  /// has been checked to own the rank.
  std::vector<PmixRelay::Outgoing> on_question(std::size_t host, wire::PmixNames question);

  /// Hosts may be reached again over a new connection: a question that a host asks again (by its
  /// id: the answer was lost) then has its effect once. To be called before the first question.
  void keep_answers() { keeping_ = true; }

  /// This launcher has adopted the job: until so many hosts have said what their ranks had
  /// published, questions wait.
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
  std::vector<Waiting> held_;  // while names are restored
  struct Answered {
    std::map<std::uint64_t, std::int32_t> statuses;  // of publish and unpublish, by id
    std::deque<std::uint64_t> ids;                   // the latest last
  };
  std::map<std::size_t, Answered> answered_;  // by host
  bool keeping_ = false;
  std::size_t restoring_ = 0;
  std::set<std::size_t> restored_;
  std::size_t bytes_ = 0;
};

}  // namespace sortie::launcher
