#include "launcher/control/attach.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <list>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/exit_code.h"
#include "common/base/quantity.h"
#include "common/config/hostlist.h"
#include "launcher/console/console.h"
#include "launcher/control/control_client.h"
#include "launcher/control/log_feed.h"
#include "launcher/control/run_index.h"
#include "launcher/run/attempt_folder.h"
#include "launcher/view/attempts_text.h"
#include "launcher/view/run_view.h"

namespace sortie::launcher {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kLook = std::chrono::milliseconds(500);
/// Time after the death of a supervisor until it is reported: it may be about to be adopted.
constexpr auto kLostAfter = std::chrono::milliseconds(1500);

/// Reads whole lines that are appended to a file.
class LineTail {
 public:
  LineTail(const std::filesystem::path& path, bool from_start) : path_(path) {
    open();
    if (file_ && !from_start) position_ = ::lseek(file_.get(), 0, SEEK_END);
  }
  template <class Sink>
  void take(Sink&& sink) {
    if (!file_) open();
    std::array<char, 65536> buffer;
    ssize_t count = 0;
    while (file_ && (count = ::pread(file_.get(), buffer.data(), buffer.size(), position_)) > 0) {
      position_ += count;
      pending_.append(buffer.data(), static_cast<std::size_t>(count));
      for (std::size_t end; (end = pending_.find('\n')) != pending_.npos;
           pending_.erase(0, end + 1))
        sink(std::string_view(pending_).substr(0, end));
    }
  }

 private:
  void open() { file_.reset(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)); }
  std::filesystem::path path_;
  Fd file_;
  off_t position_ = 0;
  std::string pending_;
};

/// The output of the current attempt of a run or of one of its sites.
class Shown {
 public:
  /// `console`: that of the run, or of the site. It must outlive this object.
  Shown(RunRecord record, const AttachRequest& request, Console& console)
      : record_(std::move(record)),
        console_(console),
        metrics_(record_.path / "metrics.jsonl", request.from_start) {
    open_feed();
    if (request.from_start || request.since_ms)
      feed_->replay(request.from_start ? std::nullopt : request.since_ms);
    else
      feed_->skip_to_end();
    if (!request.from_start) console_.set_training(read_training(record_.path));
  }
  Shown(const Shown&) = delete;
  Shown& operator=(const Shown&) = delete;

  int fd() const { return feed_->fd(); }
  const RunRecord& record() const { return record_; }
  bool has_next() const { return latest_attempt(record_.path) > record_.attempt; }

  bool show(bool everything) {
    const bool more = feed_->take(everything);
    metrics_.take([this](std::string_view line) {
      if (const auto event = parse_event(line)) console_.event(*event);
    });
    return more;
  }

  /// Switches to the next attempt, after the logs of the previous one have been shown.
  bool begin_next_attempt() {
    auto next = read_run(record_.path, record_.attempt + 1);
    if (!next) return false;  // its plan is not complete yet
    end_ranks();
    const RunView view = read_journal(record_.path);
    for (const AttemptView& attempt : view.attempts)
      if (attempt.number == record_.attempt && attempt.ended)
        console_.message(attempt_end_text(attempt));
    feed_.reset();
    record_ = std::move(*next);
    open_feed();
    feed_->replay(std::nullopt);
    return true;
  }

  void end_ranks() {
    for (const RunRecord::Host& host : record_.hosts)
      for (const std::uint32_t rank : host.ranks) console_.end_of_rank(rank);
  }

 private:
  void open_feed() {
    feed_.reset();  // it has a reference to the record
    feed_.emplace(record_, std::set<std::uint32_t>{}, [this](const LogFeed::Chunk& chunk) {
      console_.output(chunk.rank, chunk.host, chunk.stream, chunk.bytes);
    });
  }

  RunRecord record_;
  Console& console_;
  std::optional<LogFeed> feed_;
  LineTail metrics_;
};

class Attachment {
 public:
  Attachment(RunRecord record, const AttachRequest& request, Fd signals)
      : record_(std::move(record)),
        request_(request),
        signals_(std::move(signals)),
        console_(Console::detect()) {
    epoch_ = record_.supervisor.epoch;
    if (record_.sites.empty()) shown_.emplace_back(record_, request_, console_);
    take_sites();
  }

  int run() {
    connect();
    if (!record_.result)
      console_.message(fmt::format("attached to {}: {}, {} on {}{}", record_.id,
                                   record_.state_text(), counted(record_.world_size, "rank"),
                                   config::fold_host_names(record_.host_names()),
                                   record_.alive() ? "; Ctrl-C leaves it running" : ""));
    for (bool more = false;;) {
      if (const int number = wait(more)) return detached(number);
      take_sites();
      // Read the state before the files: then everything written before the end is seen.
      const auto result = read_result(record_.path);
      const bool over = result || !client_;
      more = false;
      bool begun = false;
      for (Shown& shown : shown_) {
        const bool next = shown.has_next();
        const bool rest = shown.show(over || next);
        more = more || rest;
        if (!rest && next) begun = shown.begin_next_attempt() || begun;
      }
      if (more || begun) continue;
      if (result) return ended(result->exit_code, result->text, result->aftermath);
      if (client_) continue;
      if (said_code_) return ended(*said_code_, "", "");  // for example, its disk is full
      if (const auto code = find_supervisor()) return *code;
    }
  }

 private:
  void connect() {
    client_.reset();
    if (auto client = ControlClient::connect(record_.path, epoch_)) client_ = std::move(*client);
  }

  /// Adds new sites: they may join while the run is alive.
  void take_sites() {
    for (const std::string& name : sites_in(record_.path)) {
      if (!known_sites_.insert(name).second) continue;
      auto part = read_run(site_folder(record_.path, name));
      if (!part) {
        known_sites_.erase(name);  // its plan is not complete yet
        continue;
      }
      shown_.emplace_back(std::move(*part), request_,
                          consoles_.emplace_back(console_, name, consoles_.empty()));
    }
  }

  /// Waits for an event; returns the number of a signal that arrived, or 0.
  int wait(bool at_once) {
    std::vector<pollfd> polled = {{signals_.get(), POLLIN, 0},
                                  {client_ ? client_->fd() : -1, POLLIN, 0}};
    for (const Shown& shown : shown_) polled.push_back({shown.fd(), POLLIN, 0});
    ::poll(polled.data(), polled.size(), at_once ? 0 : static_cast<int>(kLook.count()));
    signalfd_siginfo info;
    if (::read(signals_.get(), &info, sizeof info) == sizeof info)
      return static_cast<int>(info.ssi_signo);
    if (client_ && polled[1].revents != 0 && !client_->take()) {
      said_code_ = client_->end_exit_code();
      client_.reset();
    }
    return 0;
  }

  /// The connection is gone: connects to the latest supervisor, or declares the run lost.
  std::optional<int> find_supervisor() {
    const SupervisorFacts facts = latest_supervisor(record_.path);
    if (facts.alive) {
      lost_since_.reset();
      waits_for_watcher_ = false;
      if (facts.epoch != epoch_)
        console_.message(fmt::format("{} was adopted by another supervisor", record_.id));
      epoch_ = facts.epoch;
      connect();
      return std::nullopt;
    }
    const auto now = Clock::now();
    if (watcher_of(record_.path).alive) {
      if (!std::exchange(waits_for_watcher_, true))
        console_.message(
            fmt::format("{}: its supervisor ({}) is gone; its watcher starts another one",
                        record_.id, facts.process()));
      lost_since_.reset();
      return std::nullopt;
    }
    if (!lost_since_) lost_since_ = now;
    if (now - *lost_since_ < kLostAfter && !record_.result) return std::nullopt;
    if (read_result(record_.path)) return std::nullopt;
    if (const auto result = result_without_supervisor(record_.path))
      return ended(result->exit_code, result->text, result->aftermath);
    for_each_rank_end();
    console_.error(
        fmt::format("{}: lost: its supervisor ({}) died without a result; its hosts "
                    "end their ranks by themselves, unless runner.on_launcher_loss holds them for "
                    "`sortie attach --adopt {}`",
                    record_.id, facts.process(), record_.id));
    say_training();
    return kExitLost;
  }

  void for_each_rank_end() {
    for (Shown& shown : shown_) shown.end_ranks();
  }

  int ended(int code, const std::string& text, const std::string& aftermath) {
    for_each_rank_end();
    if (!text.empty()) console_.error(text);
    if (!aftermath.empty()) console_.message(aftermath);
    console_.say_dropped_lines(record_.id);
    say_training();
    console_.message(fmt::format("run {} ended with exit code {}", record_.id, code));
    return code;
  }

  void say_training() {
    // For a run over sites, the first site: the outer weights are the same on all.
    const std::filesystem::path& from =
        shown_.empty() ? record_.path : shown_.front().record().path;
    const std::string text =
        training_summary(read_training(from), {from, record_.name, /*alive=*/false});
    if (!text.empty()) console_.message(text);
  }

  int detached(int number) {
    console_.message(
        fmt::format("detached; {0} continues: `sortie attach {0}` attaches again, "
                    "`sortie stop {0}` ends it",
                    record_.id));
    return 128 + number;
  }

  const RunRecord record_;
  const AttachRequest& request_;
  Fd signals_;
  Console console_;
  std::list<Console> consoles_;  // one per site
  std::list<Shown> shown_;
  std::set<std::string> known_sites_;
  std::optional<ControlClient> client_;
  std::optional<int> said_code_;
  std::optional<Clock::time_point> lost_since_;
  bool waits_for_watcher_ = false;
  unsigned epoch_ = 0;
};

Result<int> attach_to(const AttachRequest& request) {
  SORTIE_ASSIGN_OR_RETURN(const RunIndex index, RunIndex::open(request.log_dir));
  SORTIE_ASSIGN_OR_RETURN(const auto run, index.find(request.run));
  SORTIE_ASSIGN_OR_RETURN(RunRecord record, read_run(run));
  sigset_t watched;
  sigemptyset(&watched);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&watched, number);
  ::sigprocmask(SIG_BLOCK, &watched, nullptr);
  Fd signals(::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals) return std::unexpected(os_error(errno, "signalfd"));
  Attachment attachment(std::move(record), request, std::move(signals));
  return attachment.run();
}

}  // namespace

int attach(const AttachRequest& request) {
  std::signal(SIGPIPE, SIG_IGN);
  const auto code = attach_to(request);
  if (code) return *code;
  Console(Console::detect()).error(code.error().message);
  return exit_code_for(code.error().code);
}

}  // namespace sortie::launcher
