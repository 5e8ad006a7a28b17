#include "tests/launcher/sites/site_world.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace sortie::launcher::test {
using namespace sortie::training;

namespace {
constexpr std::int64_t kBatch = 8;  // of one site

std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9E3779B97F4A7C15u ^ (b + 0x7F4A7C15u);
  x ^= x >> 29;
  return x * 0xBF58476D1CE4E5B9u ^ x >> 32;
}
}  // namespace

SiteWorld::SiteWorld(Config config) : config_(std::move(config)), random_(config_.seed) {
  for (int i = 0; i < config_.sites; ++i) {
    SimSite& site = sites_.emplace_back();
    site.name = std::string(1, static_cast<char>('a' + i));
    if (!config_.step_seconds.empty())
      site.step_seconds = config_.step_seconds[static_cast<std::size_t>(i)];
  }
  start_coordinator();
  for (SimSite& site : sites_) start(site);
  for (int i = 0; i < config_.site_crashes; ++i)
    at(jitter(500, 30'000),
       [this] { crash(sites_[static_cast<std::size_t>(jitter(0, config_.sites - 1))]); });
  for (int i = 0; i < config_.coordinator_crashes; ++i)
    at(jitter(500, 30'000), [this] { start_coordinator(); });
}

void SiteWorld::at(std::int64_t when, std::function<void()> what) {
  events_.emplace(when, std::move(what));
}
std::int64_t SiteWorld::jitter(std::int64_t least, std::int64_t most) {
  return std::uniform_int_distribution<std::int64_t>(least, most)(random_);
}
bool SiteWorld::chance(double share) {
  return std::uniform_real_distribution<double>(0, 1)(random_) < share;
}
SiteWorld::SimSite* SiteWorld::find(const std::string& name) {
  const auto it = std::ranges::find(sites_, name, &SimSite::name);
  return it == sites_.end() ? nullptr : &*it;
}

std::string SiteWorld::state() const {
  std::string out = fmt::format("{} ms, round {}:", now, coordinator_->round());
  for (const auto& site : coordinator_->sites())
    out += fmt::format(" {} {} {}", site.name, site.state, site.round);
  for (const SimSite& site : sites_)
    for (const Leader& leader : site.leaders)
      out += fmt::format(
          "; {}/{} round {} question {}{}", site.name, leader.part, leader.round, leader.number,
          leader.asked ? fmt::format(" kind {}", leader.asked->index()) : " answered");
  return out;
}

/// Starts the first coordinator, or one that replaces another, from the log on disk.
void SiteWorld::start_coordinator() {
  OuterCoordinator::Settings settings;
  for (const SimSite& site : sites_) settings.sites.push_back(site.name);
  settings.outer.rounds = !config_.rounds_of_one;
  settings.outer.every = config_.rounds_of_one ? 1 : config_.every;
  settings.outer.fragments = config_.fragments;
  settings.outer.min_sites = config_.min_sites;
  settings.global_batch_size = kBatch * config_.sites;
  ++life_;
  coordinator_ = std::make_unique<OuterCoordinator>(
      std::move(settings), [this] { return fmt::format("{:064x}", ++keys_); });
  if (const auto read = coordinator_->restore(log); !read) broken.push_back(read.error().message);
  for (const SimSite& site : sites_)
    take(site.up ? coordinator_->site_up(OuterCoordinator::Time(now), site.name, site.attempt)
                 : coordinator_->site_down(OuterCoordinator::Time(now), site.name, false));
}

void SiteWorld::take(OuterCoordinator::Step step) {
  for (const std::string& line : step.lines) {
    log += line;
    const auto json = nlohmann::json::parse(line);
    if (json["do"] == "commit") {
      ++commits;
      const std::pair what{json["round"].get<std::int64_t>(), json["fragment"].get<std::int64_t>()};
      if (!epoch_of_.emplace(what, json["epoch"]).second)
        broken.push_back(
            fmt::format("round {} fragment {} committed twice", what.first, what.second));
      committed_.insert(json["epoch"].get<std::uint64_t>());
      consumed_[what.first] = json["position"];
    } else if (json["do"] == "begin") {  // rounds after this one are void
      std::erase_if(epoch_of_, [&](const auto& entry) {
        return entry.first.first > json["round"].get<std::int64_t>();
      });
      ranges_.clear();
    }
  }
  if (step.end) broken.push_back("the run ended: " + step.end->text);
  // It may crash after it has written and before it has sent anything.
  for (const OuterCoordinator::Message& message : step.messages) {
    const SimSite* site = find(message.site);
    if (!site || chance(config_.lost)) continue;
    const int copies = chance(config_.doubled) ? 2 : 1;
    for (int i = 0; i < copies; ++i)
      at(now + jitter(1, 60),
         [this, message, attempt = site->attempt] { deliver(message, attempt); });
  }
  wake();
}

void SiteWorld::wake() {
  const auto due = coordinator_->wake_at();
  if (!due) return;
  const std::int64_t when = std::max(now, due->count());
  at(when, [this, life = life_] {
    if (life == life_ && coordinator_->wake_at() && coordinator_->wake_at()->count() <= now)
      take(coordinator_->tick(OuterCoordinator::Time(now)));
  });
}

void SiteWorld::ask(SimSite& site, Leader& leader, OuterQuestion question) {
  leader.asked = std::move(question);
  ++leader.number;
  repeat(site.name, site.attempt, leader.part, leader.number);
}

void SiteWorld::repeat(std::string name, std::uint32_t attempt, int part, std::uint64_t number) {
  SimSite& site = *find(name);
  if (!site.up || site.attempt != attempt) return;
  Leader& leader = site.leaders[static_cast<std::size_t>(part)];
  if (leader.number != number || !leader.asked) return;
  const int copies = chance(config_.lost) ? 0 : chance(config_.doubled) ? 2 : 1;
  const NumberedQuestion question{number, *leader.asked};
  for (int i = 0; i < copies; ++i)
    at(now + jitter(1, 60), [this, name, attempt, part, question] {
      if (find(name)->attempt != attempt || !find(name)->up) return;  // its link is gone
      take(coordinator_->ask(OuterCoordinator::Time(now), name, static_cast<std::uint32_t>(part),
                             question));
    });
  at(now + 1000, [this, name, attempt, part, number] { repeat(name, attempt, part, number); });
}

std::uint64_t SiteWorld::hash_of(const Leader& leader) const {
  std::uint64_t hash = 0;
  for (const auto& [fragment, theta] : leader.theta) hash = mixed(hash, theta);
  return hash;
}

void SiteWorld::start(SimSite& site) {
  site.up = true;
  site.leaders.assign(static_cast<std::size_t>(config_.parts), {});
  for (int part = 0; part < config_.parts; ++part) {
    Leader& leader = site.leaders[static_cast<std::size_t>(part)];
    leader.part = part;
    leader.round = site.saved_round;
    for (std::int64_t f = 0; f < config_.fragments; ++f) {
      leader.done[f] = leader.round;
      // Weights are a function of the rounds that contributed.
      std::uint64_t theta = mixed(static_cast<std::uint64_t>(part), 17);
      for (std::int64_t r = 1; r <= leader.round; ++r)
        theta = mixed(theta, epoch_of_.contains({r, f}) ? epoch_of_[{r, f}] : 0);
      leader.theta[f] = theta;
    }
    leader.position = consumed_[leader.round];
    leader.work = site.saved_work;
  }
  take(coordinator_->site_up(OuterCoordinator::Time(now), site.name, site.attempt));
  for (Leader& leader : site.leaders) join(site, leader);
}

void SiteWorld::crash(SimSite& site) {
  if (!site.up) return;
  site.up = false;
  site.saved_round = std::min(site.leaders[0].round, jitter(0, site.leaders[0].round));
  site.saved_work = chance(0.5) ? site.leaders[0].work : OuterWork{};
  const std::int64_t notice = now + jitter(50, 3000);
  at(notice, [this, name = site.name] {
    SimSite& gone = *find(name);
    take(coordinator_->site_down(OuterCoordinator::Time(now), name, false));
    ++gone.attempt;
    at(now + jitter(200, 4000), [this, name] { start(*find(name)); });
  });
  // Its peers notice their broken links.
  for (SimSite& other : sites_)
    for (Leader& leader : other.leaders) {
      if (!other.up || !leader.order) continue;
      const bool together = std::ranges::any_of(
          leader.order->members, [&](const OuterMember& m) { return m.site == site.name; });
      if (!together) continue;
      at(now + jitter(10, 2000),
         [this, name = other.name, part = leader.part, epoch = leader.epoch, gone = site.name] {
           SimSite& waits = *find(name);
           if (!waits.up) return;
           Leader& its = waits.leaders[static_cast<std::size_t>(part)];
           if (its.order && its.epoch == epoch) vote(waits, its, false, gone);
         });
    }
}

void SiteWorld::join(SimSite& site, Leader& leader) {
  leader.order.reset();
  OuterJoin question;
  question.site = site.name;
  question.part = leader.part;
  question.parts = config_.parts;
  question.round = leader.round;
  question.hash = hash_of(leader);
  question.fresh = leader.round == 0;
  question.position = leader.position;
  question.elements = 100 + leader.part;
  question.address = "10.0.0.1:4000";
  if (leader.work.round == leader.round + 1) {
    question.work_steps = leader.work.steps;
    question.first_sample = leader.work.first_sample;
  }
  ask(site, leader, question);
}

void SiteWorld::next(SimSite& site, Leader& leader) {
  ask(site, leader, OuterNext{leader.round + 1, site.step_seconds});
}

void SiteWorld::ready(SimSite& site, Leader& leader) {
  leader.ready_since = now;
  ask(site, leader, OuterReady{leader.round + 1, leader.fragment, 1000, false, ""});
}

void SiteWorld::on(SimSite& site, Leader& leader, const OuterJoined& said) {
  if (said.donors.empty()) {
    if (leader.round != said.round)
      broken.push_back(fmt::format("site {} is to begin at round {} with the weights of {}",
                                   site.name, said.round, leader.round));
    leader.fragment = 0;
    return next(site, leader);
  }
  const int part = leader.part;
  at(now + jitter(20, 3000),
     [this, name = site.name, attempt = site.attempt, part, said, number = leader.number] {
       SimSite& joiner = *find(name);
       if (!joiner.up || joiner.attempt != attempt) return;
       Leader& its = joiner.leaders[static_cast<std::size_t>(part)];
       if (its.number != number) return;
       for (const std::string& donor : said.donors) {
         SimSite& from = *find(donor);
         if (!from.up) continue;
         Leader& has = from.leaders[static_cast<std::size_t>(part)];
         const bool whole = std::ranges::all_of(
             has.done, [&](const auto& entry) { return entry.second == said.round; });
         if (!whole || has.round != said.round) continue;
         its.theta = has.theta;
         its.done = has.done;
         its.round = has.round;
         its.position = has.position;
         its.work = {};
         its.fragment = 0;
         return next(joiner, its);
       }
       join(joiner, its);
     });
}

void SiteWorld::on(SimSite& site, Leader& leader, const OuterWork& work) {
  if (work.round != leader.round + 1 || work.steps < 1 || work.batch != kBatch)
    broken.push_back(
        fmt::format("site {}: work of round {}, {} steps", site.name, work.round, work.steps));
  const std::int64_t end = work.first_sample + work.steps * work.batch;
  if (leader.part == 0) {
    const auto after = ranges_.lower_bound(work.first_sample);
    if (after != ranges_.end() && after->first < end &&
        !(after->first == work.first_sample && after->second.second == site.name))
      broken.push_back(fmt::format("samples of {} from {} are {}'s, too", site.name,
                                   work.first_sample, after->second.second));
    if (after != ranges_.begin()) {
      const auto before = std::prev(after);
      if (before->second.first > work.first_sample && before->second.second != site.name)
        broken.push_back(fmt::format("samples of {} at {} are {}'s, too", site.name,
                                     work.first_sample, before->second.second));
    }
    ranges_[work.first_sample] = {end, site.name};
  }
  leader.work = work;
  const double seconds = static_cast<double>(work.steps) * site.step_seconds;
  const auto time = static_cast<std::int64_t>(seconds * 1000) + jitter(0, 20);
  if (leader.round >= 3) busy_ms[site.name] += time;
  at(now + time,
     [this, name = site.name, attempt = site.attempt, part = leader.part, number = leader.number] {
       SimSite& trained = *find(name);
       if (!trained.up || trained.attempt != attempt) return;
       Leader& its = trained.leaders[static_cast<std::size_t>(part)];
       if (its.number != number) return;
       its.fragment = 0;
       ready(trained, its);
     });
}

void SiteWorld::on(SimSite& site, Leader& leader, const OuterExchange& order) {
  ++orders;
  const auto [known, fresh] = orders_.emplace(order.epoch, order);
  std::vector<std::string> names, others;
  double sum = 0;
  for (const OuterMember& member : order.members) {
    names.push_back(member.site);
    sum += member.weight;
  }
  for (const OuterMember& member : known->second.members) others.push_back(member.site);
  if (names != others || known->second.round != order.round || known->second.key != order.key)
    broken.push_back(fmt::format("epoch {} was granted twice", order.epoch));
  if (!std::ranges::is_sorted(names) || std::abs(sum - 1) > 1e-9)
    broken.push_back(fmt::format("epoch {}: members {} with weights of {}", order.epoch,
                                 fmt::join(names, ","), sum));
  if (order.epoch <= leader.epoch)
    broken.push_back(fmt::format("epoch {} after {}", order.epoch, leader.epoch));
  if (leader.round >= 3) idle_ms[site.name] += now - leader.ready_since;
  leader.epoch = order.epoch;
  leader.order = order;
  // Gives up peers that are silent.
  at(now + 15'000,
     [this, name = site.name, attempt = site.attempt, part = leader.part, epoch = order.epoch] {
       SimSite& waits = *find(name);
       if (!waits.up || waits.attempt != attempt) return;
       Leader& its = waits.leaders[static_cast<std::size_t>(part)];
       if (its.order && its.epoch == epoch) vote(waits, its, false, "");
     });
  try_exchange(order.epoch, leader.part);
}

/// Once all members have the order, each completes the exchange by itself after some time.
void SiteWorld::try_exchange(std::uint64_t epoch, int part) {
  const OuterExchange& order = orders_.at(epoch);
  for (const OuterMember& member : order.members) {
    SimSite& site = *find(member.site);
    if (!site.up) return;
    const Leader& leader = site.leaders[static_cast<std::size_t>(part)];
    if (!leader.order || leader.order->epoch != epoch) return;
  }
  for (const OuterMember& member : order.members) {
    SimSite& site = *find(member.site);
    at(now + jitter(30, 400), [this, name = site.name, attempt = site.attempt, part, epoch] {
      SimSite& done = *find(name);
      if (!done.up || done.attempt != attempt) return;
      Leader& leader = done.leaders[static_cast<std::size_t>(part)];
      if (!leader.order || leader.epoch != epoch) return;
      vote(done, leader, true, "");
    });
  }
}

void SiteWorld::vote(SimSite& site, Leader& leader, bool done, const std::string& suspect) {
  const OuterExchange order = *std::exchange(leader.order, std::nullopt);
  OuterVote said{order.round, order.fragment, order.epoch, done, 0, "", suspect};
  said.hash = mixed(order.epoch, static_cast<std::uint64_t>(leader.part));
  if (!done) said.reason = "the link to " + suspect + " broke";
  ask(site, leader, said);
}

void SiteWorld::apply(Leader& leader, std::int64_t round, std::int64_t fragment,
                      std::uint64_t epoch) {
  if (leader.done[fragment] + 1 != round)
    broken.push_back(fmt::format("round {} applied over {}", round, leader.done[fragment]));
  leader.theta[fragment] = mixed(leader.theta[fragment], epoch);
  leader.done[fragment] = round;
}

void SiteWorld::on(SimSite& site, Leader& leader, const OuterDecision& decision) {
  const bool counts = committed_.contains(decision.epoch);
  if (counts != decision.commit)
    broken.push_back(fmt::format("site {}: epoch {} is {}, and the log says otherwise", site.name,
                                 decision.epoch, decision.commit ? "committed" : "called off"));
  if (!decision.commit) return ready(site, leader);
  apply(leader, decision.round, decision.fragment, decision.epoch);
  // All sites that have the round have the same weights.
  for (const SimSite& other : sites_) {
    if (!other.up) continue;
    const Leader& its = other.leaders[static_cast<std::size_t>(leader.part)];
    const auto has = its.done.find(decision.fragment);
    if (has != its.done.end() && has->second == decision.round &&
        its.theta.at(decision.fragment) != leader.theta.at(decision.fragment))
      broken.push_back(fmt::format("sites {} and {} differ after round {}", site.name, other.name,
                                   decision.round));
  }
  if (++leader.fragment < config_.fragments) return ready(site, leader);
  leader.fragment = 0;
  ++leader.round;
  leader.position = std::max(leader.position, consumed_[leader.round]);
  next(site, leader);
}

void SiteWorld::deliver(const OuterCoordinator::Message& message, std::uint32_t attempt) {
  SimSite* const site = find(message.site);
  if (!site || !site->up || site->attempt != attempt) return;
  Leader& leader = site->leaders[message.rank];
  if (const auto* abort = std::get_if<OuterAbort>(&message.answer); abort && message.number == 0) {
    if (leader.order && leader.epoch == abort->epoch) vote(*site, leader, false, "");
    return;
  }
  const bool taken_back = std::holds_alternative<OuterRefused>(message.answer) && !leader.asked &&
                          (message.number == leader.number || message.number == 0);
  if (taken_back && leader.round > 0) return join(*site, leader);
  if (message.number != leader.number || !leader.asked) return;
  // No site has a matching state: it restarts from its checkpoint.
  const bool no_way = std::holds_alternative<OuterJoin>(*leader.asked) &&
                      std::holds_alternative<OuterRefused>(message.answer);
  leader.asked.reset();
  if (no_way) return crash(*site);
  std::visit(
      [&](const auto& answer) {
        using Answer = std::decay_t<decltype(answer)>;
        if constexpr (std::is_same_v<Answer, OuterRefused>)
          join(*site, leader);
        else if constexpr (!std::is_same_v<Answer, OuterAbort>)
          on(*site, leader, answer);
      },
      message.answer);
}

bool SiteWorld::run(std::int64_t limit_ms) {
  const auto all_done = [&] {
    return std::ranges::all_of(sites_, [&](const SimSite& site) {
      return site.up && std::ranges::all_of(site.leaders, [&](const Leader& leader) {
               return leader.round >= config_.rounds;
             });
    });
  };
  while (!events_.empty() && broken.empty()) {
    auto event = events_.extract(events_.begin());
    now = std::max(now, event.key());
    if (now > limit_ms) return false;
    event.mapped()();
    if (now > 31'000 && all_done()) return true;
    if (config_.site_crashes + config_.coordinator_crashes == 0 && all_done()) return true;
  }
  return false;
}

}  // namespace sortie::launcher::test
