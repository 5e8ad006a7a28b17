#include "launcher/report/goodput.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "common/base/quantity.h"

namespace sortie::launcher {
namespace {

constexpr double kForever = std::numeric_limits<double>::infinity();
constexpr std::int64_t kAllSteps = std::numeric_limits<std::int64_t>::max();

/// The part of an attempt in which it trained.
struct Work {
  bool any = false, told = false;  // told: the program reported a start or steps
  bool from_memory = false;
  double begin = 0, end = 0;
  std::int64_t from = 0, last = 0;    // steps done before the attempt; last known step
  std::vector<RunTimes::Step> marks;  // reported steps in ascending order
  std::vector<RunTimes::Save> saves;
};

class Accounts {
 public:
  Accounts(const RunTimes& times, std::optional<double> now) : times_(times) {
    begun_ = times.begun.value_or(times.last);
    end_ = std::max(begun_, times.ended.value_or(now.value_or(times.last)));
    alive_ = now && !times.ended;
    attempts_ = times.attempts;
    if (attempts_.empty()) attempts_.push_back({begun_, {}, {}, {}, false});
    attempts_.front().begun = begun_;  // the journal has its event after that of the run
    for (std::size_t i = 0; i < attempts_.size(); ++i) works_.push_back(work_of(i));
  }

  Goodput goodput() const {
    Goodput out;
    out.total = end_ - begun_;
    out.attempts = attempts_.size();
    double free = begun_;  // start of the current time without training
    bool trained = false;
    for (std::size_t i = 0; i < works_.size(); ++i) {
      const Work& work = works_[i];
      if (!work.any) continue;
      (trained ? out.restart : out.idle) += work.begin - free;
      add_work(work, kept_after(i), out);
      free = work.end;
      trained = true;
    }
    // The setup of an attempt counts as restart if an earlier attempt trained.
    const bool coming = alive_ && !works_.back().any && trained;
    (coming ? out.restart : out.idle) += end_ - free;
    return out;
  }

 private:
  /// Time at which the next attempt begins; infinity for the last attempt.
  double until(std::size_t i) const {
    return i + 1 < attempts_.size() ? attempts_[i + 1].begun : kForever;
  }
  template <class Event>
  std::vector<Event> within(const std::vector<Event>& events, std::size_t i) const {
    std::vector<Event> out;
    const double from = i == 0 ? -kForever : attempts_[i].begun;
    for (const Event& event : events)
      if (event.time >= from && event.time < until(i)) out.push_back(event);
    return out;
  }

  Work work_of(std::size_t i) const {
    const RunTimes::Attempt& attempt = attempts_[i];
    Work work;
    const auto steps = within(times_.steps, i);
    const auto begins = within(times_.begins, i);
    work.saves = within(times_.saves, i);
    work.any = work.told = !begins.empty() || !steps.empty();
    if (!begins.empty()) {
      work.begin = begins.front().time;
      work.from = begins.front().step;
      work.from_memory = begins.front().from_memory;
    } else if (!steps.empty()) {
      work.begin = steps.front().time - times_.first_step;
      work.from = steps.front().step - 1;
    } else if (times_.begins.empty() && times_.steps.empty() && attempt.ordered) {
      work.any = true;
      work.begin = *attempt.ordered;
    }
    RunTimes::Step newest{work.begin, work.from};
    for (const RunTimes::Step& step : steps)
      if (step.step > newest.step && step.time >= newest.time) work.marks.push_back(newest = step);
    work.last = work.marks.empty() ? work.from : work.marks.back().step;
    work.end = attempt.failed.value_or(attempt.ended.value_or(kForever));
    for (const double done : times_.done)
      if (done >= work.begin && done < until(i)) work.end = std::min(work.end, done);
    work.end = std::min({work.end, until(i), end_});
    work.begin = std::clamp(work.begin, begun_, end_);
    work.end = std::max(work.begin, work.end);
    return work;
  }

  bool ended_well(std::size_t i) const {
    return attempts_[i].well || (alive_ && i + 1 == attempts_.size());
  }

  /// The newest step of attempt `i` that no later attempt repeated and that is not lost.
  std::int64_t kept_after(std::size_t i) const {
    std::int64_t kept = kAllSteps;
    std::size_t last = i;
    for (std::size_t j = i + 1; j < works_.size(); ++j) {
      if (!works_[j].told) continue;
      kept = std::min(kept, works_[j].from);
      last = j;
    }
    if (!works_[last].told || ended_well(last)) return kept;
    return std::min(kept, committed_after(last));
  }

  /// The step from which training can go on after attempt `i`. Checkpoints in memory end with the
  /// run: then a checkpoint of the attempt that was the source of that memory counts, or an earlier
  /// one. Suspect ones count if there is no other.
  std::int64_t committed_after(std::size_t i) const {
    std::int64_t committed = 0, suspect = 0;
    for (;; --i) {
      const Work& work = works_[i];
      for (const RunTimes::Save& save : work.saves)
        if (alive_ || save.outlives) {
          std::int64_t& newest = save.suspect ? suspect : committed;
          newest = std::max(newest, save.step);
        }
      if (alive_ || !work.from_memory || i == 0) {
        const bool lost = !alive_ && work.from_memory;
        if (!lost) committed = std::max(committed, work.from);
        return committed > 0 ? committed : suspect;
      }
    }
  }

  /// Time at which `step` was done, interpolated between the reported steps.
  static double time_of(const Work& work, std::int64_t step) {
    if (step <= work.from) return work.begin;
    const auto after = std::ranges::lower_bound(work.marks, step, {}, &RunTimes::Step::step);
    if (after == work.marks.end()) {
      double latest = work.marks.empty() ? work.begin : work.marks.back().time;
      for (const RunTimes::Save& save : work.saves)
        if (save.step == step) latest = std::max(latest, save.time);
      return latest;
    }
    RunTimes::Step before{work.begin, work.from};
    if (after != work.marks.begin()) before = *(after - 1);
    const double share =
        static_cast<double>(step - before.step) / static_cast<double>(after->step - before.step);
    return before.time + share * (after->time - before.time);
  }

  static void add_work(const Work& work, std::int64_t kept, Goodput& out) {
    double good_until = work.end;
    if (work.told) {
      out.steps_known = true;
      if (kept != kAllSteps) {
        good_until = std::clamp(time_of(work, kept), work.begin, work.end);
        out.lost_steps += std::max<std::int64_t>(0, work.last - std::max(kept, work.from));
      }
    }
    double stalled = 0;
    for (const RunTimes::Save& save : work.saves)
      if (save.step <= kept) stalled += save.stall;
    stalled = std::clamp(stalled, 0.0, good_until - work.begin);
    out.save += stalled;
    out.train += good_until - work.begin - stalled;
    out.lost += work.end - good_until;
  }

  const RunTimes& times_;
  double begun_ = 0, end_ = 0;
  bool alive_ = false;
  std::vector<RunTimes::Attempt> attempts_;
  std::vector<Work> works_;
};

}  // namespace

Goodput goodput_of(const RunTimes& times, std::optional<double> now) {
  return Accounts(times, now).goodput();
}

std::string goodput_text(const Goodput& found) {
  if (!found.steps_known && found.attempts < 2) return {};
  std::string out = fmt::format("\ntime: {} in {}\n", short_time(found.total),
                                counted(found.attempts, "attempt"));
  const auto row = [&](const char* name, double seconds, const std::string& what) {
    out += fmt::format("  {:<8} {:>8} {:>6.1f} %{}\n", name, short_time(seconds),
                       found.total > 0 ? 100 * seconds / found.total : 0.0, what);
  };
  row("train", found.train, "");
  row("save", found.save, "");
  row("restart", found.restart, "");
  row("lost", found.lost,
      !found.steps_known ? "  (the program reports no steps: not known)"
      : found.lost_steps == 0
          ? ""
          : fmt::format("  ({})", counted(static_cast<std::uint64_t>(found.lost_steps), "step")));
  row("idle", found.idle, "  (before the first step, and after the last one)");
  return out;
}

nlohmann::ordered_json goodput_json(const Goodput& found) {
  return {{"attempts", found.attempts},    {"total_s", found.total},
          {"train_s", found.train},        {"save_s", found.save},
          {"restart_s", found.restart},    {"lost_s", found.lost},
          {"idle_s", found.idle},          {"steps_known", found.steps_known},
          {"lost_steps", found.lost_steps}};
}

}  // namespace sortie::launcher
