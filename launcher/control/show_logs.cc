#include "launcher/control/show_logs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <regex.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "common/base/exit_code.h"
#include "common/base/print_stderr.h"
#include "common/config/hostgroups.h"
#include "common/config/hostlist.h"
#include "launcher/console/console.h"
#include "launcher/control/log_feed.h"
#include "launcher/control/run_index.h"
#include "launcher/run/attempt_folder.h"
#include "launcher/run/job_options.h"
#include "launcher/run/run_folder.h"

namespace sortie::launcher {
namespace {

constexpr std::size_t kMaxLogPartial = 1u << 20;

class Pattern {
 public:
  static Result<Pattern> compile(const std::string& text) {
    Pattern pattern;
    if (text.empty()) return pattern;
    pattern.regex_ = std::shared_ptr<regex_t>(new regex_t{}, [](regex_t* regex) {
      ::regfree(regex);
      delete regex;
    });
    const int error = ::regcomp(pattern.regex_.get(), text.c_str(), REG_EXTENDED | REG_NOSUB);
    if (error == 0) return pattern;
    char why[256];
    ::regerror(error, pattern.regex_.get(), why, sizeof why);
    return fail(ErrorCode::usage,
                fmt::format("--grep {}: is no extended regular expression: {}", text, why));
  }
  bool matches(std::string_view line) const {
    if (!regex_) return true;
    regmatch_t whole{0, static_cast<regoff_t>(line.size())};  // lines may contain zero bytes
    return ::regexec(regex_.get(), line.data(), 1, &whole, REG_STARTEND) == 0;
  }

 private:
  std::shared_ptr<regex_t> regex_;
};

/// Prints all lines of ranks on stdout. A slow reader blocks this process.
class LinePrinter {
 public:
  LinePrinter(Pattern pattern, std::string site)
      : pattern_(std::move(pattern)), site_(std::move(site)), color_(Console::detect().color_out) {}

  void add(const LogFeed::Chunk& chunk) {
    std::string& partial = partials_[{chunk.rank, chunk.stream}];
    std::string_view bytes = chunk.bytes;
    for (std::size_t end; (end = bytes.find('\n')) != bytes.npos; bytes.remove_prefix(end + 1)) {
      partial.append(bytes.substr(0, end));
      print(chunk.rank, chunk.host, partial);
      partial.clear();
    }
    partial.append(bytes);
    if (partial.size() < kMaxLogPartial) return;
    print(chunk.rank, chunk.host, partial);
    partial.clear();
  }
  /// Prints the remaining lines without a newline.
  void finish(const RunRecord& record) {
    for (const RunRecord::Host& host : record.hosts)
      for (const std::uint32_t rank : host.ranks)
        for (const wire::Stream stream : {wire::Stream::out, wire::Stream::err})
          if (const auto it = partials_.find({rank, stream}); it != partials_.end()) {
            if (!it->second.empty()) print(rank, host.name, it->second);
            partials_.erase(it);
          }
    flush();
  }
  void flush() { good_ = std::fflush(stdout) == 0 && good_; }
  bool good() const { return good_; }

 private:
  void print(std::uint32_t rank, const std::string& host, std::string_view line) {
    if (!good_ || !pattern_.matches(line)) return;
    const std::string text = rank_line(rank, host, line, color_, site_);
    good_ = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  }

  const Pattern pattern_;
  const std::string site_;  // empty = the run has no sites
  const bool color_;
  std::map<StreamKey, std::string> partials_;
  bool good_ = true;
};

Result<std::vector<std::string>> hosts_of(const LogsRequest& request) {
  JobOptions options;
  options.hosts = request.hosts;
  return named_hosts(options);
}

/// `site`: empty, or the site of this record. --host may also name hosts of other sites.
Result<std::set<std::uint32_t>> chosen_ranks(const LogsRequest& request, const RunRecord& record,
                                             const std::string& site) {
  std::set<std::uint32_t> ranks;
  if (!request.ranks.empty()) {
    SORTIE_ASSIGN_OR_RETURN(ranks, parse_ranks(request.ranks, record.world_size));
  }
  if (request.hosts.empty()) return ranks;
  SORTIE_ASSIGN_OR_RETURN(const auto names, hosts_of(request));
  // A group of hosts may have more hosts than the run.
  const bool by_group = config::mentions_group(request.hosts);
  std::set<std::uint32_t> on_hosts;
  for (const std::string& name : names) {
    const auto host = std::ranges::find(record.hosts, name, &RunRecord::Host::name);
    if (host == record.hosts.end() && (by_group || !site.empty())) continue;
    if (host == record.hosts.end())
      return fail(ErrorCode::usage,
                  fmt::format("--host {}: {} is no host of this run; it has {}", request.hosts,
                              name, config::fold_host_names(record.host_names())));
    for (const std::uint32_t rank : host->ranks)
      if (ranks.empty() || ranks.contains(rank)) on_hosts.insert(rank);
  }
  if (on_hosts.empty())
    return fail(ErrorCode::usage,
                fmt::format("--rank {} --host {}: none of these ranks is on that host",
                            request.ranks, request.hosts));
  return on_hosts;
}

/// Prints new output until the run has ended or its next attempt has begun, and everything written
/// before has been printed.
Result<> follow(LogFeed& feed, LinePrinter& printer, const RunRecord& record) {
  const std::filesystem::path& run = record.path;
  for (;;) {
    pollfd polled = {feed.fd(), POLLIN, 0};
    const bool notified = ::poll(&polled, 1, feed.fd() < 0 ? 200 : 1000) > 0;
    // Read the state before the logs: then everything written before the end is seen.
    const bool next = !notified && latest_attempt(run) > record.attempt;
    const std::filesystem::path whole = run_of_site(run).value_or(run);
    const bool over = !notified && (read_result(whole) ||
                                    (!latest_supervisor(whole).alive && !watcher_of(whole).alive));
    while (feed.take(!notified)) {
    }
    printer.flush();
    if (!printer.good()) return std::unexpected(os_error(errno, "sortie: write to stdout"));
    if (next) return {};
    if (!over) continue;
    if (result_without_supervisor(whole)) return {};
    return fail(ErrorCode::lost,
                "its supervisor died without a result; `sortie status` has what "
                "is known");
  }
}

/// Prints one attempt.
Result<> print_attempt(const LogsRequest& request, const RunRecord& record, const Pattern& pattern,
                       std::optional<std::int64_t> since, const std::string& site) {
  SORTIE_ASSIGN_OR_RETURN(const auto ranks, chosen_ranks(request, record, site));
  LinePrinter printer(pattern, site);
  LogFeed feed(record, ranks, [&](const LogFeed::Chunk& chunk) { printer.add(chunk); });
  feed.replay(since);
  Result<> done;
  if (request.follow) done = follow(feed, printer, record);
  printer.finish(record);
  if (!done) return done;
  if (!printer.good()) return std::unexpected(os_error(errno, "sortie: write to stdout"));
  return {};
}

/// Prints a run, or one of its sites.
Result<> print_logs_in(const LogsRequest& request, const std::filesystem::path& run,
                       const std::string& site) {
  SORTIE_ASSIGN_OR_RETURN(RunRecord record,
                          read_run(run, static_cast<std::uint32_t>(request.attempt)));
  SORTIE_ASSIGN_OR_RETURN(const Pattern pattern, Pattern::compile(request.grep));
  std::optional<std::int64_t> since;
  if (!request.since.empty()) {
    SORTIE_ASSIGN_OR_RETURN(
        since, parse_since(request.since, static_cast<std::int64_t>(unix_time() * 1000)));
  }
  for (;;) {
    SORTIE_TRY(print_attempt(request, record, pattern, since, site));
    // --follow continues with the next attempt, unless an attempt was given.
    const bool on = request.follow && request.attempt == 0;
    if (!on || latest_attempt(run) <= record.attempt) return {};
    SORTIE_ASSIGN_OR_RETURN(record, read_run(run, record.attempt + 1));
    since.reset();
  }
}

/// Of `sites`, those with hosts that --host names. Error: it names no host of any.
Result<std::vector<std::string>> sites_with_hosts(const LogsRequest& request,
                                                  const std::filesystem::path& run,
                                                  const std::vector<std::string>& sites) {
  SORTIE_ASSIGN_OR_RETURN(const auto names, hosts_of(request));
  std::vector<std::string> chosen, hosts;
  for (const std::string& site : sites) {
    const auto record =
        read_run(site_folder(run, site), static_cast<std::uint32_t>(request.attempt));
    if (!record) continue;  // its plan is not complete yet, or it had no such attempt
    bool is_chosen = false;
    for (const std::string& host : record->host_names()) {
      is_chosen = is_chosen || std::ranges::find(names, host) != names.end();
      hosts.push_back(host);
    }
    if (is_chosen) chosen.push_back(site);
  }
  const bool by_group = config::mentions_group(request.hosts);
  for (const std::string& name : names)
    if (std::ranges::find(hosts, name) == hosts.end() && (!by_group || chosen.empty()))
      return fail(
          ErrorCode::usage,
          fmt::format("--host {}: {} is no host of {}; it has {}", request.hosts, name,
                      request.site.empty() ? "this run" : fmt::format("site {}", request.site),
                      config::fold_host_names(hosts)));
  return chosen;
}

Result<> print_logs(const LogsRequest& request) {
  SORTIE_ASSIGN_OR_RETURN(const RunIndex index, RunIndex::open(request.log_dir));
  SORTIE_ASSIGN_OR_RETURN(const auto run, index.find(request.run));
  std::vector<std::string> sites = sites_in(run);
  if (!request.site.empty()) {
    if (std::ranges::find(sites, request.site) == sites.end())
      return fail(
          ErrorCode::usage,
          fmt::format("--site {}: {}", request.site,
                      sites.empty() ? "the run has no sites"
                                    : fmt::format("the run has {}", fmt::join(sites, ", "))));
    sites = {request.site};
  }
  if (sites.empty()) return print_logs_in(request, run, "");
  if (!request.hosts.empty()) {
    SORTIE_ASSIGN_OR_RETURN(sites, sites_with_hosts(request, run, sites));
  }
  if (!request.follow) {
    for (const std::string& site : sites)
      SORTIE_TRY(print_logs_in(request, site_folder(run, site), site));
    return {};
  }
  std::vector<Result<>> ends(sites.size());
  {
    std::vector<std::jthread> threads;  // lines do not mix: each is one fwrite()
    for (std::size_t i = 0; i < sites.size(); ++i)
      threads.emplace_back(
          [&, i] { ends[i] = print_logs_in(request, site_folder(run, sites[i]), sites[i]); });
  }
  for (const Result<>& end : ends) SORTIE_TRY(Result<>(end));
  return {};
}

}  // namespace

int show_logs(const LogsRequest& request) {
  const auto done = print_logs(request);
  if (done) return kExitOk;
  print_stderr("{}\n", printable_lines(done.error().message));
  return exit_code_for(done.error().code);
}

}  // namespace sortie::launcher
