#include "trainer/parallel/wait_question.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "common/base/json_text.h"
#include "trainer/parallel/rank_set.h"

namespace sortie::trainer {
namespace {

using Place = WaitAnswer::Place;
using nlohmann::json;

constexpr std::array<std::string_view, 6> kPlaces = {"there",   "blocked", "queued",
                                                     "nowhere", "differs", "elsewhere"};
constexpr std::size_t kMostTextBytes = 500;  // of a name, so that a question fits into the store

/// Reads a member; another rank may have sent anything.
template <class T>
bool read(const json& from, const char* name, T& value) {
  const auto found = from.find(name);
  if (found == from.end()) return false;
  if constexpr (std::is_same_v<T, std::string>) {
    if (!found->is_string()) return false;
  } else if constexpr (std::is_same_v<T, bool>) {
    if (!found->is_boolean()) return false;
  } else if (!found->is_number_integer()) {
    return false;
  }
  value = found->get<T>();
  return true;
}

/// Ranks that are at one place. `outside`: of the question's group.
struct Alike {
  bool outside = false;
  // The order in which the launcher looks for whom to blame for a hang: silent ranks, then those in
  // their own work, then those in another collective.
  enum class Kind : std::uint8_t { silent, blocked, queued, nowhere, differs, elsewhere } kind;
  std::string text;
  auto operator<=>(const Alike&) const = default;
};

Alike::Kind kind_of(Place place) {
  switch (place) {
    case Place::there:  // never described
    case Place::blocked:
      return Alike::Kind::blocked;
    case Place::queued:
      return Alike::Kind::queued;
    case Place::nowhere:
      return Alike::Kind::nowhere;
    case Place::differs:
      return Alike::Kind::differs;
    case Place::elsewhere:
      return Alike::Kind::elsewhere;
  }
  return Alike::Kind::blocked;
}

std::string described(const Alike& at, const RankSet& ranks) {
  const bool one = ranks.size() == 1;
  const std::string who = ranks.text();
  const char* const have = one ? "has" : "have";
  const std::string not_begun = at.outside ? "" : fmt::format("{} not begun it and ", have);
  switch (at.kind) {
    case Alike::Kind::silent:
      return one ? who +
                       " does not answer: its process is stopped or has ended, or its host can not "
                       "be reached"
                 : who +
                       " do not answer: their processes are stopped or have ended, or their hosts "
                       "can not be reached";
    case Alike::Kind::blocked:
      return fmt::format("{} {} blocked in a call of the GPU's driver", who, one ? "is" : "are");
    case Alike::Kind::queued:
      return fmt::format("the GPU{} of {} {} not reached {}: earlier work on {} has not ended",
                         one ? "" : "s", who, have, at.text.empty() ? "it" : at.text,
                         one ? "that GPU" : "these GPUs");
    case Alike::Kind::nowhere:
      return fmt::format("{} {}{} in no collective{}", who, not_begun, one ? "is" : "are",
                         at.text.empty() ? "" : fmt::format(" ({})", at.text));
    case Alike::Kind::differs:
      return fmt::format(
          "{} {} in {} instead: ranks do not issue the same collectives "
          "(SORTIE_COMM_DEBUG=1 finds the first difference)",
          who, one ? "is" : "are", at.text);
    case Alike::Kind::elsewhere:
      return fmt::format("{} {}{} in {}", who, not_begun, one ? "waits" : "wait", at.text);
  }
  return who;
}

}  // namespace

std::string CollectiveName::text() const {
  return fmt::format("{} {} of group {} ({} ranks)", operation, number, group, size);
}

std::string WaitQuestion::to_text() const {
  return json_text(json{{"rank", rank},
                        {"group", collective.group.substr(0, kMostTextBytes)},
                        {"first", collective.first},
                        {"size", collective.size},
                        {"operation", collective.operation.substr(0, kMostTextBytes)},
                        {"number", collective.number},
                        {"message", collective.message},
                        {"failed", failed}});
}

std::optional<WaitQuestion> WaitQuestion::parse(const std::string& text) {
  const json from = json::parse(text, nullptr, false);
  WaitQuestion question;
  CollectiveName& name = question.collective;
  if (!from.is_object() || !read(from, "rank", question.rank) || !read(from, "group", name.group) ||
      !read(from, "first", name.first) || !read(from, "size", name.size) ||
      !read(from, "operation", name.operation) || !read(from, "number", name.number) ||
      !read(from, "message", name.message) || !read(from, "failed", question.failed))
    return std::nullopt;
  return question;
}

std::string WaitAnswer::to_text() const {
  return json_text(json{{"place", kPlaces[static_cast<std::size_t>(place)]},
                        {"text", text.substr(0, kMostTextBytes)}});
}

std::optional<WaitAnswer> WaitAnswer::parse(const std::string& text) {
  const json from = json::parse(text, nullptr, false);
  WaitAnswer answer;
  std::string place;
  if (!from.is_object() || !read(from, "place", place) || !read(from, "text", answer.text))
    return std::nullopt;
  const auto* const found = std::ranges::find(kPlaces, place);
  if (found == kPlaces.end()) return std::nullopt;
  answer.place = static_cast<Place>(found - kPlaces.begin());
  return answer;
}

std::string describe_answers(const WaitQuestion& question, const std::vector<int>& members,
                             const std::vector<std::optional<WaitAnswer>>& answers,
                             const std::vector<std::string>& hosts) {
  std::map<Alike, RankSet> missing;
  bool waits_elsewhere = false;  // a member that others may be to blame for
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    const auto& answer = answers[rank];
    if (answer && answer->place == Place::there) continue;
    const bool outside = std::ranges::find(members, static_cast<int>(rank)) == members.end();
    const Alike at{outside, answer ? kind_of(answer->place) : Alike::Kind::silent,
                   answer ? answer->text : ""};
    // After an error of the library ranks need not have come to the same collective.
    const bool alive = at.kind == Alike::Kind::queued || at.kind == Alike::Kind::nowhere ||
                       at.kind == Alike::Kind::elsewhere;
    if (alive && question.failed) continue;
    if (outside && at.kind == Alike::Kind::elsewhere) continue;
    waits_elsewhere = waits_elsewhere || (!outside && at.kind == Alike::Kind::elsewhere);
    missing[at].add(static_cast<int>(rank), rank < hosts.size() ? hosts[rank] : "");
  }
  if (!waits_elsewhere && !question.failed)
    std::erase_if(missing, [](const auto& entry) { return entry.first.outside; });
  if (missing.empty()) {
    const char* const at_fault =
        "the network or a GPU is at fault, not the program of a rank; NCCL_DEBUG=INFO shows more";
    return question.failed
               ? fmt::format("all {} ranks of the run answer: {}", answers.size(), at_fault)
               : fmt::format("all {} ranks have come to it: {}", members.size(), at_fault);
  }
  constexpr std::size_t kMostParts = 6;
  std::vector<std::string> parts;
  std::size_t left_out = 0;
  for (const auto& [at, ranks] : missing) {
    if (parts.size() == kMostParts)
      left_out += ranks.size();
    else
      parts.push_back((at.outside && !question.failed ? "outside of the group: " : "") +
                      described(at, ranks));
  }
  return fmt::format(
      "{}{}; see what happened there{}", fmt::join(parts, "; "),
      left_out == 0 ? "" : fmt::format("; {} more ranks have not come to it", left_out),
      question.failed ? "" : ", or set SORTIE_COMM_TIMEOUT to more seconds");
}

}  // namespace sortie::trainer
