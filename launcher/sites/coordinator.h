// OuterCoordinator: decides which sites take part in a round, on which samples they work, and which
// rounds are committed (common/training/outer.h defines the questions). Pure: its input is times
// and messages, its output messages and log lines.
//
// At most one exchange is active at a time. It belongs to the round after the last committed round
// of its fragment. A site that was not part of a commit has other weights than the rest. It is
// notified at once, and again until it asks a question. Its questions are refused until it has
// joined again.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
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
  using Time = std::chrono::milliseconds;  // of any monotonic clock
  struct Settings {
    std::vector<std::string> sites;  // in config order
    config::OuterSettings outer;
    std::int64_t global_batch_size = 0;  // samples per inner step over all these sites; 0 = none
    Time start_wait{300'000};            // before the first round, for sites that have not joined
    Time join_wait{300'000};             // for a site that copies weights from others
    Time rejoin{600'000};                // for sites to rejoin if fewer than min_sites are left
  };
  struct Message {
    std::string site;
    std::uint32_t rank = 0;    // within the site
    std::uint64_t number = 0;  // of the question; 0 = unsolicited
    training::OuterAnswer answer;
  };
  /// An event for the journal and the user.
  struct Note {
    enum class Kind { begun, joined, committed, aborted, excluded, paused, resumed, differs };
    Kind kind = Kind::begun;
    std::string site{};  // site of the event; empty = the run
    std::int64_t round = 0, fragment = 0;
    std::uint64_t epoch = 0;
    std::vector<std::string> members{};
    double seconds = 0;  // committed: from the order to the last vote; paused: maximum duration
    double waited = 0;   // committed: from the first ready site to the order
    std::int64_t steps_in_vain = 0;  // joined: wasted steps that the site reports
    std::string text{};
  };
  struct End {
    int exit_code = 0;
    std::string text;
  };
  /// The result of an event. The fields must be processed in this order: `lines` must be on disk
  /// before any message is sent.
  struct Step {
    std::vector<std::string> lines;  // each ends with '\n'
    std::vector<Message> messages;
    std::vector<Note> notes;
    std::optional<End> end;
  };
  /// Returns a new random key: 32 bytes in hexadecimal.
  using NewKey = std::function<std::string()>;
  /// Number of orders of one exchange that follow each other without a pause.
  static constexpr int kOrdersAtOnce = 3;

  OuterCoordinator(Settings settings, NewKey new_key);

  /// Restores the state from the log of earlier supervisors of the run. Must be called before any
  /// other function. An incomplete last line is ignored, because it was never acted on.
  /// ErrorCode::data names the first invalid line.
  Result<> restore(std::string_view log);

  /// An attempt of the site has begun, or was adopted. The leaders of an earlier attempt are gone.
  Step site_up(Time now, const std::string& site, std::uint32_t attempt);
  /// The attempt has ended. `for_good`: no further attempt follows.
  Step site_down(Time now, const std::string& site, bool for_good);
  Step add_site(Time now, const std::string& site);
  /// The site leaves the run: it gets no more work, and other sites do not wait for it. Its
  /// questions are not answered: its ranks wait until they are stopped. A refusal would make them
  /// join again, and fail.
  Step remove_site(Time now, const std::string& site);
  /// The run is about to end: the active exchange may still be committed, but no new one begins.
  /// Otherwise a site that is stopped late would continue alone, without the sites that have
  /// already saved.
  Step stop(Time now);

  /// Handles a question of a rank of a site.
  Step ask(Time now, const std::string& site, std::uint32_t rank,
           const training::NumberedQuestion& question);
  /// Must be called at the time wake_at(). An earlier call is harmless.
  Step tick(Time now);
  /// Time of the next tick(); nullopt = none is due before the next event.
  std::optional<Time> wake_at() const { return wake_at_; }

  /// The last round that is committed for all fragments of the outer weights.
  std::int64_t round() const;
  std::uint64_t epoch() const { return next_epoch_ - 1; }  // of the last order
  struct SiteState {
    std::string name, state;  // coming, joining, copying, in, late, down, left, failed
    std::int64_t round = 0;   // last round that the site has for all fragments
    double step_seconds = 0;
    std::int64_t steps_in_vain = 0;  // wasted steps, counted by this supervisor
  };
  std::vector<SiteState> sites() const;

 private:
  struct Leader {
    std::uint32_t rank = 0;
    std::string address;
    std::int64_t elements = 0;
    std::uint64_t number = 0;                      // number of the newest question
    std::optional<training::OuterQuestion> asked;  // unanswered question
    std::optional<training::OuterAnswer> answered;
  };
  struct Site {
    std::string name;
    std::int64_t index = 0;
    std::uint32_t attempt = 0;
    bool up = false;      // an attempt is running
    bool failed = false;  // no further attempt follows
    bool left = false;
    bool removed = false;  // it has left by remove_site()
    bool in = false;       // has joined
    bool copying = false;  // must first copy the weights of another site
    Time joined_at{0};
    std::int64_t parts = 0;
    std::map<std::int64_t, Leader> leaders;  // part -> leader
    std::int64_t at = 0;                     // the newest round for which it has work
    std::vector<std::int64_t> done;          // fragment -> last round that the site has
    StepTimes steps;
    std::optional<Time> ready_at;   // when all parts had asked OuterReady
    bool late = false;              // not a member of the current order
    bool mixed = false;             // its fragments have different rounds: no consistent state
    std::string left_out{};         // why it was excluded, until its leaders know
    std::optional<Time> told_at{};  // when the leaders were last notified
    std::int64_t steps_in_vain = 0;
  };
  struct Order {
    std::uint64_t epoch = 0;
    std::int64_t round = 0;
    std::vector<std::size_t> members;  // indices into sites_
    Time since{0}, waited{0};          // since < 0: order of an earlier supervisor
    std::optional<Time> first_vote;
    std::map<std::size_t, std::map<std::int64_t, training::OuterVote>> votes;  // by site, part
  };
  struct Commit {
    std::int64_t round = 0, fragment = 0;
    std::set<std::string> members{};  // sites that have it
  };
  /// State of the exchanges of a fragment.
  struct Fragment {
    struct Link {
      int failures = 0;  // cancelled orders
      std::string last;  // why
    };
    std::int64_t committed = 0;
    std::optional<Order> order;
    int failures = 0;  // cancelled orders of this round
    Time retry_at{0};
    std::map<std::string, int> suspects;  // site -> number of times named as the cause
    std::map<std::pair<std::int64_t, std::int64_t>, Link> links{};  // between two sites, by index
  };
  struct Work {
    std::int64_t steps = 0, first = 0;
    bool said = false;
  };
  struct Grant {
    Time since{0};
    std::map<std::string, Work> work;  // site -> work
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
  void begin_at(std::int64_t first, const std::vector<Site*>& come);
  static std::int64_t round_at(const Site& site);
  static std::vector<std::uint64_t> state_of(const Site& site);
  void admit_joiners();
  void admit(Site& site, const std::vector<const Site*>& donors, bool same);
  bool same_state(const Site& site) const;
  Work work_of_join(const Site& site) const;
  void keep_grants(const std::vector<const Site*>& sites, std::int64_t round);
  bool grant_again(const Site& site);
  // coordinator_rounds.cc
  bool plain(std::int64_t round) const;
  void grant_work();
  void allocate(std::int64_t round);
  Work& allocate_for(Site& site, std::int64_t round);
  void write_grant(std::int64_t round);
  std::int64_t batch_of_site() const;
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
  // coordinator_failures.cc
  void fail_exchange(std::int64_t number, const Site& site, const training::OuterVote& vote);
  void call_off(std::int64_t number, std::string reason, std::string suspect);
  std::string to_leave_out(const Fragment& fragment, const std::vector<std::size_t>& ready,
                           std::int64_t wanted) const;
  bool end_unreachable(const Fragment& fragment, const std::vector<std::size_t>& members);
  // coordinator_log.cc
  Result<> restore_line(std::string_view text);
  void restore_order(const nlohmann::json& json);
  void restore_begin(const nlohmann::json& json);
  void restore_joined(const nlohmann::json& json);
  void restore_grant(const nlohmann::json& json);
  void restore_left(const nlohmann::json& json);
  Result<> restore_commit(const nlohmann::json& json);

  const Settings settings_;
  const NewKey new_key_;
  std::vector<Site> sites_;  // in config order, then in the order in which they were added
  std::vector<Fragment> fragments_;
  std::map<std::int64_t, Grant> grants_;        // round -> grant; only the newest
  std::map<std::uint64_t, Commit> commits_;     // epoch -> commit; only the newest
  std::map<std::int64_t, std::uint64_t> hash_;  // part -> hash of its state in hash_round_
  std::int64_t hash_round_ = -1;
  bool begun_ = false;                       // a site has the state of round()
  bool over_ = false;                        // a site with that state has ended its training
  std::optional<Time> first_join_, paused_;  // start times
  std::int64_t granted_ = 0;                 // samples granted since the beginning of the data
  std::int64_t consumed_ = 0;                // of them, for round() and the rounds before it
  std::uint64_t next_epoch_ = 1;
  RoundTimes times_;  // only rounds of the same kind as the current one: plain steps or not
  Time now_{0};
  std::optional<Time> wake_at_;
  bool stops_ = false, ended_ = false;
  Step step_;
};

/// Name of a note in the journal, such as "joined".
std::string_view outer_note_name(OuterCoordinator::Note::Kind kind);

}  // namespace sortie::launcher
