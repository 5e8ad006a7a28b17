// The question that a rank asks all others when a collective between GPUs makes no progress, or
// fails, the answer of each rank, and the conclusion: which ranks are missing, and where they are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sortie::trainer {

/// Names a collective of a group, in the same way on all of its ranks. `message`: a message of two
/// ranks, which its sender and its receiver call "send" and "receive".
struct CollectiveName {
  std::string group = {};
  int first = 0;               // rank of the run that is rank 0 of the group
  int size = 0;                // ranks of the group
  std::string operation = {};  // "all-reduce"
  std::uint64_t number = 0;  // among the collectives of the group, or the messages of the two ranks
  bool message = false;

  bool same_group(const CollectiveName& other) const {
    return group == other.group && first == other.first && size == other.size;
  }
  /// Whether ranks that are in these two, which have one number in one group, wait for each other.
  bool same_operation(const CollectiveName& other) const {
    return message == other.message && (message || operation == other.operation);
  }
  /// "all-reduce 17 of group world (4 ranks)"
  std::string text() const;
};

struct WaitQuestion {
  int rank = 0;  // the rank of the run that asks
  CollectiveName collective;
  bool failed = false;  // the library has reported an error; otherwise there is no progress

  std::string to_text() const;  // at most 4096 bytes
  /// nullopt for a text that is not one of to_text().
  static std::optional<WaitQuestion> parse(const std::string& text);
};

/// Where a rank is, as seen from a question.
struct WaitAnswer {
  enum class Place : std::uint8_t {
    there,      // has come to the collective, or is beyond it
    blocked,    // its thread that watches collectives is in a call of the driver, or aborts them
    queued,     // has submitted a collective, `text` or the one of the question, that its GPU has
                // not reached
    nowhere,    // in no collective; `text` is its place in training, empty if unknown
    differs,    // at the same point of the same group in another collective, `text`
    elsewhere,  // waits in another collective, `text`
  };
  Place place = Place::there;
  std::string text = {};

  std::string to_text() const;
  static std::optional<WaitAnswer> parse(const std::string& text);
};

/// Describes which ranks are missing and where they are, or that none is, and what to do: "rank 2
/// (h02) does not answer: ...; see what happened there, or set SORTIE_COMM_TIMEOUT to more
/// seconds". `members`: the ranks of the question's group. `answers`: by rank of the run, nullopt
/// where none came in time. `hosts`: by rank of the run, empty where it is unknown. Ranks outside
/// of the group are named if a member waits for others, or if the collective has failed.
std::string describe_answers(const WaitQuestion& question, const std::vector<int>& members,
                             const std::vector<std::optional<WaitAnswer>>& answers,
                             const std::vector<std::string>& hosts);

}  // namespace sortie::trainer
