// A coordinator and three sites whose questions the test controls.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "launcher/sites/coordinator.h"

namespace sortie::launcher::test {

using Ms = OuterCoordinator::Time;
using OuterKind = OuterCoordinator::Note::Kind;

/// Three sites with one leader each, rank 0.
struct CoordinatorTable {
  CoordinatorTable(const CoordinatorTable&) = delete;
  explicit CoordinatorTable(OuterCoordinator::Settings with = {}) {
    if (with.sites.empty()) with.sites = {"a", "b", "c"};
    with.outer.every = 10;
    with.outer.rounds = true;
    with.global_batch_size = 30;
    settings = with;
    coordinator =
        std::make_unique<OuterCoordinator>(with, [this] { return fmt::format("{:064x}", ++keys); });
    for (const std::string& site : with.sites) take(coordinator->site_up(now, site, 1));
  }

  void take(OuterCoordinator::Step step) {
    for (std::string& line : step.lines) log += line;
    for (OuterCoordinator::Message& message : step.messages)
      said[message.site].push_back(std::move(message));
    for (OuterCoordinator::Note& note : step.notes) notes.push_back(std::move(note));
    if (step.end) end = step.end;
  }
  void ask(const std::string& site, training::OuterQuestion question) {
    take(coordinator->ask(now, site, 0, {++numbers[site], std::move(question)}));
  }
  void wait(Ms time) {
    now += time;
    take(coordinator->tick(now));
  }
  /// The last message to the site. Fails the test if it has another type.
  template <class Answer>
  Answer told(const std::string& site) {
    REQUIRE(!said[site].empty());
    REQUIRE(std::holds_alternative<Answer>(said[site].back().answer));
    return std::get<Answer>(said[site].back().answer);
  }
  bool waits(const std::string& site) {
    return said[site].empty() || said[site].back().number != numbers[site];
  }
  void join_all(std::int64_t round = 0) {
    for (const std::string& site : settings.sites) {
      training::OuterJoin join;
      join.site = site;
      join.round = round;
      join.hash = 7;
      join.fresh = round == 0;
      join.elements = 5;
      ask(site, join);
    }
  }
  void next(const std::string& site, std::int64_t round, double step = 0.1) {
    ask(site, training::OuterNext{round, step});
  }
  void ready(const std::string& site, std::int64_t round, std::int64_t tokens = 100,
             bool abstains = false) {
    ask(site, training::OuterReady{round, 0, tokens, abstains, abstains ? "not finite" : ""});
  }
  void vote(const std::string& site, std::int64_t round, std::uint64_t epoch, std::uint64_t hash,
            bool done = true, const std::string& suspect = "") {
    ask(site,
        training::OuterVote{round, 0, epoch, done, hash, done ? "" : "the link broke", suspect});
  }
  /// Plays a whole round, with `apart` between the first and the last site.
  void round(std::int64_t number, Ms apart = Ms(100)) {
    for (const std::string& site : settings.sites) next(site, number);
    now += Ms(60'000);
    for (const std::string& site : settings.sites) {
      ready(site, number);
      now += apart / 2;
    }
    now += Ms(500);
    for (const std::string& site : settings.sites) vote(site, number, coordinator->epoch(), 9);
    for (const std::string& site : settings.sites)
      REQUIRE(told<training::OuterDecision>(site).commit);
  }

  OuterCoordinator::Settings settings;
  std::unique_ptr<OuterCoordinator> coordinator;
  Ms now{1000};
  std::uint64_t keys = 0;
  std::map<std::string, std::uint64_t> numbers;
  std::map<std::string, std::vector<OuterCoordinator::Message>> said;
  std::vector<OuterCoordinator::Note> notes;
  std::optional<OuterCoordinator::End> end;
  std::string log;
};

}  // namespace sortie::launcher::test
