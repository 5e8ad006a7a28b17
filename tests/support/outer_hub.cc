#include "tests/support/outer_hub.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

namespace sortie::testing {
using namespace sortie::training;

class OuterHub::Connection final : public trainer::outer::Coordinator {
 public:
  Connection(OuterHub& hub, std::string site, std::int64_t part, std::uint64_t incarnation)
      : hub_(hub), site_(std::move(site)), part_(part), incarnation_(incarnation) {}
  ~Connection() override { cancel(); }
  Result<OuterJoined> join(const OuterJoin& q) override {
    return as<OuterJoined>(hub_.ask(site_, part_, incarnation_, "join", q.round, q));
  }
  Result<OuterWork> next(const OuterNext& q) override {
    return as<OuterWork>(hub_.ask(site_, part_, incarnation_, "next", q.round, q));
  }
  Result<OuterExchange> ready(const OuterReady& q) override {
    return as<OuterExchange>(hub_.ask(site_, part_, incarnation_, "ready", q.round, q));
  }
  Result<OuterDecision> vote(const OuterVote& q) override {
    return as<OuterDecision>(hub_.ask(site_, part_, incarnation_, "vote", q.round, q));
  }
  void leave(const OuterLeave&) override {
    std::unique_lock lock(hub_.mutex_);
    const std::int64_t round = hub_.round();
    lock.unlock();
    if (hub_.kill_here(site_, "leave", round, false)) return;
    lock.lock();
    Site& site = hub_.sites_[site_];
    hub_.over_ = hub_.over_ || (site.in && std::ranges::min(site.done) == hub_.round());
    site.left = true;
    hub_.remove(site_);
  }
  bool aborted(std::uint64_t epoch) override {
    const std::lock_guard lock(hub_.mutex_);
    return hub_.aborted_epochs_.contains(epoch);
  }
  std::string left_out() override {  // asked at the beginning of each step
    if (hub_.settings_.begins_step) hub_.settings_.begins_step(site_);
    const std::lock_guard lock(hub_.mutex_);
    return hub_.sites_[site_].left_out ? "the run goes on without this site" : "";
  }
  void cancel() override {
    const std::lock_guard lock(hub_.mutex_);
    Site& site = hub_.sites_[site_];
    if (site.incarnation != incarnation_ || site.left || site.dead) return;
    site.dead = true;
    hub_.remove(site_);
  }

 private:
  template <class T>
  static Result<T> as(Result<OuterAnswer> answer) {
    if (!answer) return std::unexpected(answer.error());
    if (const auto* refused = std::get_if<OuterRefused>(&*answer))
      return fail(ErrorCode::config, refused->reason);
    return std::get<T>(*answer);
  }
  OuterHub& hub_;
  const std::string site_;
  const std::int64_t part_;
  const std::uint64_t incarnation_;
};

std::unique_ptr<trainer::outer::Coordinator> OuterHub::connect(const std::string& site,
                                                               std::int64_t part) {
  const std::lock_guard lock(mutex_);
  return std::make_unique<Connection>(*this, site, part, sites_[site].incarnation);
}

/// Call with the lock held.
void OuterHub::remove(const std::string& name) {
  Site& site = sites_[name];
  site.in = false;
  for (auto& [part, leader] : site.leaders) leader.asked.reset();
  site.leaders.clear();
  if (order_ && std::ranges::find(order_->members, name) != order_->members.end()) {
    aborted_epochs_.insert(order_->epoch);
    for (const std::string& member : order_->members) {
      for (auto& [part, leader] : sites_[member].leaders) {
        if (!leader.asked || !std::holds_alternative<OuterVote>(*leader.asked)) continue;
        leader.answer =
            OuterDecision{order_->round, order_->fragment, order_->epoch, false, name + " is gone"};
        leader.asked.reset();
      }
    }
    order_.reset();
  }
  settle();
  changed_.notify_all();
}

void OuterHub::lose(const std::string& name) {
  const std::lock_guard lock(mutex_);
  sites_[name].dead = true;
  remove(name);
}

void OuterHub::revive(const std::string& name) {
  const std::lock_guard lock(mutex_);
  Site& site = sites_[name];
  ++site.incarnation;
  site.dead = site.left = site.in = false;
  site.leaders.clear();
}

bool OuterHub::kill_here(const std::string& site, const std::string& what, std::int64_t round,
                         bool answered) {
  if (!settings_.kills || !settings_.kills(site, what, round, answered)) return false;
  lose(site);
  if (settings_.killed) settings_.killed(site);
  return true;
}

Result<OuterAnswer> OuterHub::ask(const std::string& name, std::int64_t part,
                                  std::uint64_t incarnation, const std::string& what,
                                  std::int64_t round, OuterQuestion question) {
  const auto gone = [&] { return fail(ErrorCode::interrupted, name + " is gone"); };
  if (kill_here(name, what, round, false)) return gone();
  std::optional<OuterAnswer> answer;
  {
    std::unique_lock lock(mutex_);
    Site& site = sites_[name];
    const auto dead = [&] { return site.dead || site.incarnation != incarnation; };
    if (dead()) return gone();
    if (const auto* join = std::get_if<OuterJoin>(&question)) {
      if (site.in) remove(name);
      site.left_out = false;
      site.in_vain += join->steps_in_vain;
      site.parts = join->parts;
      site.leaders[part].address = join->address;
    }
    if (!site.in && !std::holds_alternative<OuterJoin>(question))
      return OuterRefused{name + " is no member; join again"};
    Leader& leader = site.leaders[part];
    leader.answer.reset();
    leader.asked = std::move(question);
    settle();
    changed_.notify_all();
    changed_.wait(lock, [&] { return dead() || site.leaders[part].answer; });
    if (dead()) return gone();
    answer = std::exchange(site.leaders[part].answer, std::nullopt);
  }
  if (kill_here(name, what, round, true)) return gone();
  return *answer;
}

template <class Question>
bool OuterHub::all_ask(const Site& site) const {
  return site.parts > 0 && static_cast<std::int64_t>(site.leaders.size()) == site.parts &&
         std::ranges::all_of(site.leaders, [](const auto& entry) {
           return entry.second.asked && std::holds_alternative<Question>(*entry.second.asked);
         });
}

std::int64_t OuterHub::round() const {
  return committed_.empty() ? 0 : std::ranges::min(committed_);
}

/// Call with the lock held, after every change.
void OuterHub::settle() {
  judge();
  admit();
  grant();
  order();
  changed_.notify_all();
}

void OuterHub::admit() {
  std::vector<std::string> come;
  bool waits = false, some_in = false;
  for (const std::string& name : settings_.sites) sites_[name];
  for (const auto& [name, site] : sites_) {
    some_in = some_in || site.in;
    if (site.dead || site.left || site.in) continue;
    if (all_ask<OuterJoin>(site))
      come.push_back(name);
    else
      waits = true;
  }
  if (come.empty()) return;
  const auto join_of = [&](const std::string& name, std::int64_t part) -> const OuterJoin& {
    return std::get<OuterJoin>(*sites_[name].leaders.at(part).asked);
  };
  const auto answer = [&](const std::string& name, std::vector<std::string> donors) {
    Site& site = sites_[name];
    site.in = true;
    site.done.assign(committed_.size(), round());
    for (auto& [part, leader] : site.leaders) {
      leader.answer = OuterJoined{round(), donors};
      leader.asked.reset();
    }
  };
  if (!some_in && over_) {
    for (const std::string& name : come)
      for (auto& [part, leader] : sites_[name].leaders) {
        leader.answer = OuterJoined{round(), {}, true};
        leader.asked.reset();
      }
    return;
  }
  if (!some_in) {
    if (waits) return;
    std::int64_t first = 0;
    for (const std::string& name : come) first = std::max(first, join_of(name, 0).round);
    const std::string* model = nullptr;
    position_ = std::max(position_, settings_.position);
    for (const std::string& name : come) {
      if (join_of(name, 0).round == first && model == nullptr) model = &name;
      position_ = std::max(position_, join_of(name, 0).position);
    }
    committed_.assign(static_cast<std::size_t>(settings_.fragments), first);
    grants_.clear();
    for (const std::string& name : come) {
      const OuterJoin& join = join_of(name, 0);
      if (join.round != first || join.work_steps == 0) continue;
      grants_[first + 1][name] = {join.work_steps, join.first_sample};
      position_ = std::max(position_, join.first_sample + join.work_steps * settings_.batch);
    }
    for (const std::string& name : come) {
      const bool same = std::ranges::all_of(sites_[name].leaders, [&](const auto& entry) {
        return join_of(name, entry.first).round == first && name != *model
                   ? join_of(name, entry.first).hash == join_of(*model, entry.first).hash
                   : name == *model;
      });
      if (name != *model) answer(name, same ? std::vector<std::string>() : std::vector{*model});
    }
    answer(*model, {});
    begun_ = true;
    return;
  }
  if (order_ || std::ranges::any_of(committed_, [&](std::int64_t r) { return r != round(); }))
    return;
  std::vector<std::string> donors;
  for (const auto& [name, site] : sites_)
    if (site.in && std::ranges::min(site.done) == round()) donors.push_back(name);
  for (const std::string& name : come) answer(name, donors);
}

void OuterHub::grant() {
  for (auto& [name, site] : sites_) {
    if (!site.in || !all_ask<OuterNext>(site)) continue;
    const std::int64_t wanted = std::get<OuterNext>(*site.leaders.begin()->second.asked).round;
    const bool plain = wanted <= settings_.start_after;
    if (wanted >= settings_.whole_from &&
        std::ranges::any_of(sites_, [](const auto& other) { return !other.second.in; }))
      continue;
    auto& works = grants_[wanted];
    const auto allot = [&](const std::string& to) {
      const std::int64_t steps = plain             ? 1
                                 : settings_.steps ? settings_.steps(to)
                                                   : settings_.every;
      works[to] = {steps, position_};
      ranges_.emplace_back(position_, position_ + steps * settings_.batch);
      position_ += steps * settings_.batch;
    };
    if (works.empty())
      for (const auto& [other, state] : sites_)
        if (state.in) allot(other);
    if (!works.contains(name)) allot(name);
    const Work work = works[name];
    for (auto& [part, leader] : site.leaders) {
      leader.answer = OuterWork{wanted, work.steps, settings_.batch, work.first};
      leader.asked.reset();
    }
  }
}

void OuterHub::order() {
  if (order_) return;
  std::vector<std::string> members;
  std::optional<OuterReady> first;
  for (auto& [name, site] : sites_) {
    if (!site.in) continue;
    const bool ready_here = all_ask<OuterReady>(site);
    if (!ready_here && settings_.leaves_out && settings_.leaves_out(name, round() + 1)) continue;
    if (!ready_here) return;  // the others wait for it
    const OuterReady& ready = std::get<OuterReady>(*site.leaders.begin()->second.asked);
    const auto at = static_cast<std::size_t>(ready.fragment);
    if (ready.round != committed_[at] + 1 || ready.round != site.done[at] + 1) {
      site.in = false;
      for (auto& [part, leader] : site.leaders) {
        leader.answer = OuterRefused{fmt::format("round {} is not the next one", ready.round)};
        leader.asked.reset();
      }
      continue;
    }
    if (first && ready.fragment != first->fragment) return;
    first = ready;
    members.push_back(name);
  }
  if (members.empty()) return;
  std::vector<double> weights;
  double sum = 0;
  for (const std::string& name : members) {
    double weight = 1e300;
    for (const auto& [part, leader] : sites_[name].leaders) {
      const auto& ready = std::get<OuterReady>(*leader.asked);
      weight = std::min(weight, ready.abstains ? 0.0 : static_cast<double>(ready.tokens));
    }
    if (settings_.counts && !settings_.counts(name, first->round)) weight = 0.0;
    weights.push_back(weight);
    sum += weight;
  }
  if (sum <= 0) {
    for (const std::string& name : members) {
      sites_[name].in = false;
      for (auto& [part, leader] : sites_[name].leaders) {
        leader.answer = OuterRefused{"no site has a change of the weights to offer"};
        leader.asked.reset();
      }
    }
    return;
  }
  order_ = Order{first->round, first->fragment, ++epoch_, members};
  for (const std::string& name : members) {
    for (auto& [part, leader] : sites_[name].leaders) {
      OuterExchange what{order_->round, order_->fragment, order_->epoch, {}, std::string(64, 'a')};
      for (std::size_t i = 0; i < members.size(); ++i)
        what.members.push_back(
            {members[i], sites_[members[i]].leaders.at(part).address, weights[i] / sum});
      leader.answer = std::move(what);
      leader.asked.reset();
    }
  }
}

void OuterHub::judge() {
  for (auto& [name, site] : sites_) {
    for (auto& [part, leader] : site.leaders) {
      const auto* vote = leader.asked ? std::get_if<OuterVote>(&*leader.asked) : nullptr;
      if (vote == nullptr || (order_ && order_->epoch == vote->epoch)) continue;
      leader.answer = OuterDecision{vote->round, vote->fragment, vote->epoch, false, "called off"};
      leader.asked.reset();
    }
  }
  if (!order_) return;
  bool done = true, all = true;
  std::vector<std::uint64_t> hashes;
  std::string reason;
  for (const std::string& name : order_->members) {
    for (const auto& [part, leader] : sites_[name].leaders) {
      const auto* vote = leader.asked ? std::get_if<OuterVote>(&*leader.asked) : nullptr;
      if (vote == nullptr) {
        all = false;
        continue;
      }
      if (!vote->done) {
        done = false;
        reason = name + ": " + vote->reason;
      }
      const auto at = static_cast<std::size_t>(part);
      if (hashes.size() <= at) hashes.resize(at + 1);
      if (hashes[at] == 0) hashes[at] = vote->hash;
      if (vote->done && hashes[at] != vote->hash) {
        done = false;
        reason = name + " has another mean";
      }
    }
  }
  if (!all && done) return;
  if (!done) aborted_epochs_.insert(order_->epoch);
  for (const std::string& name : order_->members) {
    for (auto& [part, leader] : sites_[name].leaders) {
      if (!leader.asked || !std::holds_alternative<OuterVote>(*leader.asked)) continue;
      leader.answer = OuterDecision{order_->round, order_->fragment, order_->epoch, done, reason};
      leader.asked.reset();
    }
    if (done) sites_[name].done[static_cast<std::size_t>(order_->fragment)] = order_->round;
  }
  if (done) {
    committed_[static_cast<std::size_t>(order_->fragment)] = order_->round;
    commits_.push_back({order_->round, order_->fragment, hashes.front(), order_->members});
    for (auto& [name, site] : sites_) {
      if (!site.in || std::ranges::find(order_->members, name) != order_->members.end()) continue;
      site.in = false;
      site.left_out = true;
      for (auto& [part, leader] : site.leaders) {
        if (leader.asked) leader.answer = OuterRefused{"the run goes on without " + name};
        leader.asked.reset();
      }
    }
  }
  order_.reset();
}

std::vector<OuterHub::Commit> OuterHub::commits() const {
  const std::lock_guard lock(mutex_);
  return commits_;
}

bool OuterHub::left(const std::string& site) const {
  const std::lock_guard lock(mutex_);
  const auto found = sites_.find(site);
  return found != sites_.end() && found->second.left;
}

std::int64_t OuterHub::steps_in_vain(const std::string& site) const {
  const std::lock_guard lock(mutex_);
  const auto found = sites_.find(site);
  return found == sites_.end() ? 0 : found->second.in_vain;
}

bool OuterHub::dead(const std::string& site) const {
  const std::lock_guard lock(mutex_);
  const auto found = sites_.find(site);
  return found != sites_.end() && found->second.dead;
}

std::int64_t OuterHub::aborted() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::int64_t>(aborted_epochs_.size());
}

std::vector<std::pair<std::int64_t, std::int64_t>> OuterHub::grants() const {
  const std::lock_guard lock(mutex_);
  return ranges_;
}

}  // namespace sortie::testing
