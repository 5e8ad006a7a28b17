// OuterCoordinator: restores the state from the log of an earlier supervisor. For an active
// exchange the log has the members, but not the key: it can complete, unless a member has not
// received the order.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "launcher/sites/coordinator.h"
#include "launcher/sites/coordinator_lines.h"

namespace sortie::launcher {

Result<> OuterCoordinator::restore(std::string_view log) {
  std::size_t number = 0;
  for (std::size_t end; (end = log.find('\n')) != log.npos; log.remove_prefix(end + 1)) {
    ++number;
    if (end == 0) continue;
    if (auto read = restore_line(log.substr(0, end)); !read)
      return fail(read.error().code, fmt::format("line {}{}", number, read.error().message));
  }
  return {};
}

Result<> OuterCoordinator::restore_line(std::string_view text) {
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    const std::string what = json.at("do");
    if (what == "order") restore_order(json);
    if (what == "begin") restore_begin(json);
    if (what == "joined") restore_joined(json);
    if (what == "grant") restore_grant(json);
    if (what == "left") restore_left(json);
    if (what == "commit") return restore_commit(json);
    return {};
  } catch (const nlohmann::json::exception& error) {
    return fail(ErrorCode::data,
                fmt::format(" is damaged ({}); start the run again to resume from its "
                            "checkpoints",
                            error.what()));
  }
}

void OuterCoordinator::restore_order(const nlohmann::json& json) {
  Order order{json.at("epoch").get<std::uint64_t>(),
              json.at("round").get<std::int64_t>(),
              {},
              Time{-1},
              Time{0},
              {},
              {}};
  next_epoch_ = std::max(next_epoch_, order.epoch + 1);
  for (const std::string name : json.at("members"))
    if (const Site* const site = find(name))
      order.members.push_back(static_cast<std::size_t>(site->index));
  const auto number = json.at("fragment").get<std::size_t>();
  if (number < fragments_.size()) fragments_[number].order = std::move(order);
}

void OuterCoordinator::restore_begin(const nlohmann::json& json) {
  begun_ = true;
  const auto round = json.at("round").get<std::int64_t>();
  for (Fragment& fragment : fragments_) fragment = Fragment{round, {}, 0, {}, {}};
  granted_ = consumed_ = json.at("position");
  grants_.clear();
  // "joined" lines follow for the sites that have this state.
  for (Site& site : sites_) site.in = false;
}

void OuterCoordinator::restore_joined(const nlohmann::json& json) {
  const std::string name = json.at("site");
  if (!find(name)) {
    Site& added = sites_.emplace_back();
    added.name = name;
    added.index = static_cast<std::int64_t>(sites_.size()) - 1;
    added.done.resize(fragments_.size());
  }
  Site& site = *find(name);
  site.attempt = json.at("attempt");
  site.in = site.copying = true;  // copying until a commit includes it
  site.left = false;
  site.left_out.clear();
  site.at = json.at("round");
  std::ranges::fill(site.done, site.at);
  site.leaders.clear();
  for (const auto& entry : json.at("leaders")) {
    Leader& leader = site.leaders[entry.at("part").get<std::int64_t>()];
    leader.rank = entry.at("rank");
    leader.address = entry.at("address");
    leader.elements = entry.at("elements");
  }
  site.parts = static_cast<std::int64_t>(site.leaders.size());
}

void OuterCoordinator::restore_grant(const nlohmann::json& json) {
  const auto round = json.at("round").get<std::int64_t>();
  granted_ = json.at("position");
  Grant& grant = grants_[round];
  grant.since = Time{-1};
  for (const auto& [name, work] : json.at("work").items())
    grant.work[name] = {work.at(0).get<std::int64_t>(), work.at(1).get<std::int64_t>(), true};
  while (grants_.size() > 4) grants_.erase(grants_.begin());
  for (Site& site : sites_)
    if (site.in && grant.work.contains(site.name)) site.at = std::max(site.at, round);
}

void OuterCoordinator::restore_left(const nlohmann::json& json) {
  Site* const site = find(json.at("site"));
  if (!site) return;
  site->in = false;
  site->left = true;
  over_ = over_ || json.value("over", false);
}

/// ErrorCode::data if the config has fewer fragments than the line.
Result<> OuterCoordinator::restore_commit(const nlohmann::json& json) {
  const auto number = json.at("fragment").get<std::size_t>();
  if (number >= fragments_.size())
    return fail(ErrorCode::data, fmt::format(": fragment {} of {}; outer.fragments was changed",
                                             number, fragments_.size()));
  Commit commit{json.at("round").get<std::int64_t>(), static_cast<std::int64_t>(number), {}};
  for (const auto& name : json.at("members")) commit.members.insert(name.get<std::string>());
  fragments_[number] = Fragment{commit.round, {}, 0, {}, {}};
  if (round() == commit.round) consumed_ = json.at("position");
  for (Site& site : sites_) {
    if (commit.members.contains(site.name)) {
      site.done[number] = commit.round;
      site.copying = false;
    } else {
      if (site.in) site.left_out = left_out_text(commit.round, site.name);
      site.in = false;
    }
  }
  commits_[json.at("epoch").get<std::uint64_t>()] = std::move(commit);
  while (commits_.size() > 64) commits_.erase(commits_.begin());
  return {};
}

}  // namespace sortie::launcher
