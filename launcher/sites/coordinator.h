// OuterCoordinator: decides which sites take part in a round, on which samples they work, and which
// rounds count (common/training/outer.h has the questions). Pure: time and messages come in,
// messages and lines for the log go out.
//
// One exchange per fragment is under way at a time; it is of the round after the last one of that
// fragment that was committed. A site that a round was committed without has other weights than the
// rest: it is told so at once, and again until it asks for something, and is refused until it has
// joined again.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/config/outer.h"
#include "common/training/outer.h"
#include "launcher/sites/round_times.h"

namespace sortie::launcher {

class OuterCoordinator {
 public:
  using Time = std::chrono::milliseconds;  // of any clock that never goes back
  struct Settings {
    std::vector<std::string> sites;  // in config order
    config::OuterSettings outer;
    std::int64_t global_batch_size = 0;  // samples of an inner step of all these sites; 0: none
    Time start_wait{300'000};            // for sites that are still to join, before the first round
    Time join_wait{300'000};             // for a site that copies the weights of others
    Time rejoin{600'000};                // for sites to come back, with fewer than min_sites
  };
  struct Message {
    std::string site;
    std::uint32_t rank = 0;    // of the site
    std::uint64_t number = 0;  // of the question; 0: unasked
    training::OuterAnswer answer;
  };
  /// For the journal and for people.
  struct Note {
    enum class Kind { begun, joined, committed, aborted, excluded, paused, resumed, differs };
    Kind kind = Kind::begun;
    std::string site{};  // whose; empty = the run's
    std::int64_t round = 0, fragment = 0;
    std::uint64_t epoch = 0;
    std::vector<std::string> members{};
    double seconds = 0;  // committed: from the order to the last vote; paused: how long at most
    double waited = 0;   // committed: from the first site that was ready to the order
    std::int64_t steps_in_vain = 0;  // joined: of the site, as it says
    std::string text{};
  };
  struct End {
    int exit_code = 0;
    std::string text;
  };
  /// What follows from an event, in this order: `lines` are to be on disk before any message is
  /// said.
  struct Step {
    std::vector<std::string> lines;  // with line ends
    std::vector<Message> messages;
    std::vector<Note> notes;
    std::optional<End> end;
  };
  /// 32 bytes in hexadecimal, never the same twice.
  using NewKey = std::function<std::string()>;
  /// Orders of one exchange that follow each other at once, before there is a pause.
  static constexpr int kOrdersAtOnce = 3;

  OuterCoordinator(Settings settings, NewKey new_key);

  /// What an earlier supervisor of the run has written; before anything else. A line that is cut
  /// off, as only the last one can be, was never acted on. ErrorCode::data names the line that
  /// makes no sense.
  Result<> restore(std::string_view log);

  /// An attempt of the site has begun or goes on (one that was adopted). Whoever joined in an
  /// earlier one is gone.
  Step site_up(Time now, const std::string& site, std::uint32_t attempt);
  /// The attempt has ended. `for_good`: no further one follows.
  Step site_down(Time now, const std::string& site, bool for_good);
  Step add_site(Time now, const std::string& site);
  /// The site leaves: no work is granted to it any more, and nobody waits for it.
  Step remove_site(Time now, const std::string& site);
  /// The run is to end: the exchange that is under way may still count, and no other one begins.
  /// Else a site that hears of it late would go on alone, without those that have saved already.
  Step stop(Time now);

  /// A question of a rank of a site.
  Step ask(Time now, const std::string& site, std::uint32_t rank,
           const training::NumberedQuestion& question);
  /// The time has come that wake_at() had named; earlier does no harm.
  Step tick(Time now);
  /// When the next thing is due; none = nothing is, until somebody says something.
  std::optional<Time> wake_at() const { return wake_at_; }

  /// The round that all fragments of the outer weights have.
  std::int64_t round() const;
  std::uint64_t epoch() const { return next_epoch_ - 1; }  // that was granted last
  struct SiteState {
    std::string name, state;  // coming, joining, copying, in, late, down, left, failed
    std::int64_t round = 0;   // that it has, or works on
    double step_seconds = 0;
    std::int64_t steps_in_vain = 0;  // since this supervisor has the run
  };
  std::vector<SiteState> sites() const;

 private:
  struct Leader {
    std::uint32_t rank = 0;
    std::string address;
    std::int64_t elements = 0;
    std::uint64_t number = 0;                      // of the newest question
    std::optional<training::OuterQuestion> asked;  // and not answered
    std::optional<training::OuterAnswer> answered;
  };
  struct Site {
    std::string name;
    std::int64_t index = 0;
    std::uint32_t attempt = 0;
    bool up = false;      // an attempt is under way
    bool failed = false;  // and none will be
    bool left = false;
    bool in = false;       // has joined
    bool copying = false;  // and is to get the weights of others first
    Time joined_at{0};
    std::int64_t parts = 0;
    std::map<std::int64_t, Leader> leaders;  // by part
    std::int64_t at = 0;                     // the newest round that it has work of
    std::vector<std::int64_t> done;          // of each fragment: the round that it has
    StepTimes steps;
    std::optional<Time> ready_at;   // all parts have asked OuterReady
    bool late = false;              // the order under way is without it
    bool mixed = false;             // its fragments are of different rounds: it has no round
    std::string left_out{};         // why it is in no more, as long as leaders of it may not know
    std::optional<Time> told_at{};  // when they were told last
    std::int64_t steps_in_vain = 0;
  };
  struct Order {
    std::uint64_t epoch = 0;
    std::int64_t round = 0;
    std::vector<std::size_t> members;  // of sites_
    Time since{0}, waited{0};          // since < 0: given by an earlier supervisor
    std::optional<Time> first_vote;
    std::map<std::size_t, std::map<std::int64_t, training::OuterVote>> votes;  // site, part
  };
  struct Commit {
    std::int64_t round = 0, fragment = 0;
    std::set<std::string> members{};  // that have it
  };
  /// The exchanges of a fragment.
  struct Fragment {
    std::int64_t committed = 0;
    std::optional<Order> order;
    int failures = 0;  // orders of this round that were called off
    Time retry_at{0};
    std::map<std::string, int> suspects;  // how often each was named in them
  };
  struct Work {
    std::int64_t steps = 0, first = 0;
    bool said = false;
  };
  struct Grant {
    Time since{0};
    std::map<std::string, Work> work;  // by site
  };

  // coordinator.cc
  Site* find(const std::string& name);
  std::pair<Site*, Leader*> leader_of(const std::string& site, std::uint32_t rank);
  template <class Question>
  bool all_ask(const Site& site) const;
  void answer(Site& site, Leader& leader, training::OuterAnswer what);
  void answer_all(Site& site, const training::OuterAnswer& what);
  void note(Note what) { step_.notes.push_back(std::move(what)); }
  void line(const std::string& text) { step_.lines.push_back(text); }
  void lose(Site& site, const std::string& why);
  void leave(Site& site, const std::string& why);
  bool has_newest(const Site& site) const;
  Step settle(Time now);
  void due(Time when);
  void tell_left_out();
  void watch_pause();
  void call_off_unheard(const Site& site, const training::OuterReady& ready);
  std::int64_t wanted_sites() const;
  std::int64_t count_in() const;
  // coordinator_join.cc
  void take_join(Site& site, std::uint32_t rank, const training::NumberedQuestion& question);
  std::string misfit(const Site& site, const training::OuterJoin& join) const;
  void begin_rounds();
  void admit_joiners();
  void admit(Site& site, const std::vector<const Site*>& donors, bool same);
  bool same_state(const Site& site) const;
  // coordinator_rounds.cc
  bool plain(std::int64_t round) const;
  void grant_work();
  void allocate(std::int64_t round);
  Work& allocate_for(Site& site, std::int64_t round);
  std::int64_t steps_for(const Site& site, std::int64_t round) const;
  void check_ready(Site& site);
  void order_exchanges();
  void order_exchange(std::int64_t number);
  void refuse_abstainers(const std::vector<std::size_t>& members);
  void give_order(std::int64_t number, const std::vector<std::size_t>& members, Time first);
  // coordinator_votes.cc
  void take_vote(Site& site, Leader& leader, const training::OuterVote& vote);
  void judge_votes();
  bool judge(std::int64_t number);
  void commit(std::int64_t number, const std::set<std::size_t>& agreed, std::uint64_t hash);
  void call_off(std::int64_t number, std::string reason, std::string suspect);
  // coordinator_log.cc
  Result<> restore_line(std::string_view text);

  const Settings settings_;
  const NewKey new_key_;
  std::vector<Site> sites_;  // in config order, then in the order in which they were added
  std::vector<Fragment> fragments_;
  std::map<std::int64_t, Grant> grants_;        // by round; the newest few
  std::map<std::uint64_t, Commit> commits_;     // by epoch; the newest few
  std::map<std::int64_t, std::uint64_t> hash_;  // of each part's state in hash_round_
  std::int64_t hash_round_ = -1;
  bool begun_ = false;                       // somebody has the state of round()
  bool over_ = false;                        // who had that one has ended its training
  std::optional<Time> first_join_, paused_;  // since when
  std::int64_t granted_ = 0;                 // samples, from the beginning of the data
  std::uint64_t next_epoch_ = 1;
  RoundTimes times_;  // of rounds like the current one: plain steps or not
  Time now_{0};
  std::optional<Time> wake_at_;
  bool stops_ = false, ended_ = false;
  Step step_;
};

/// "joined", as in the journal.
std::string_view outer_note_name(OuterCoordinator::Note::Kind kind);

}  // namespace sortie::launcher
