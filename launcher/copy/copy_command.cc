#include "launcher/copy/copy_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/base/command_name.h"
#include "common/base/elapsed.h"
#include "common/base/exit_code.h"
#include "common/base/json_text.h"
#include "common/base/print_stderr.h"
#include "common/base/printable.h"
#include "common/base/quantity.h"
#include "common/cli/print.h"
#include "common/config/hostlist.h"
#include "common/files/entry_path.h"
#include "launcher/copy/copy_targets.h"
#include "launcher/copy/host_crew.h"
#include "launcher/copy/progress.h"
#include "launcher/copy/tree_download.h"
#include "launcher/host/fold_failures.h"

namespace sortie::launcher {
namespace asio = boost::asio;
namespace fs = std::filesystem;

namespace {

/// Limit of the size of file lists, over all hosts of a pull.
constexpr std::uint64_t kListBytes = 512u << 20;
constexpr std::uint64_t kLeastListBytes = 4u << 20;
/// Number of files of this machine that can not be sent that are reported by name.
constexpr std::size_t kMostLeftOut = 100;

int say(const Error& error) {
  print_stderr("{}\n", error.message);
  return exit_code_for(error.code);
}

wire::FilesOpen order_for(const config::RunnerConfig& runner, wire::FilesPurpose purpose) {
  wire::FilesOpen order;
  order.purpose = purpose;
  order.heartbeat_interval_ms = static_cast<std::uint32_t>(runner.heartbeat_interval.count());
  order.heartbeat_timeout_ms = static_cast<std::uint32_t>(runner.heartbeat_timeout.count());
  return order;
}

struct Summary {
  std::size_t hosts = 0, changed_hosts = 0;
  std::uint64_t files = 0, from_launcher = 0, from_hosts = 0;
};

Summary summary_of(const std::vector<HostResult>& results) {
  Summary sum;
  for (const HostResult& result : results) {
    if (result.error) continue;
    ++sum.hosts;
    if (result.done.files_changed > 0) ++sum.changed_hosts;
    sum.files += result.done.files_changed;
    sum.from_launcher += result.done.bytes_from_launcher;
    sum.from_hosts += result.done.bytes_from_hosts;
  }
  return sum;
}

/// What a pull did not copy from each host; empty for a push.
struct NotCopied {
  std::vector<std::vector<Error>> missing;      // paths that the host lacks or can not read
  std::vector<std::vector<std::string>> links;  // DownloadProgress::links_left_out
};

std::string copy_json(const char* schema, const std::vector<HostResult>& results, double seconds,
                      const NotCopied& not_copied = {}, const std::vector<Error>& left_out = {}) {
  const auto& [missing, links] = not_copied;
  nlohmann::ordered_json out = {{"schema", schema}, {"seconds", seconds}};
  for (std::size_t i = 0; i < results.size(); ++i) {
    const HostResult& result = results[i];
    const bool lacks = i < missing.size() && !missing[i].empty();
    nlohmann::ordered_json host = {{"host", result.host}, {"ok", !result.error && !lacks}};
    if (lacks) {
      std::vector<std::string> texts;
      for (const Error& error : missing[i]) texts.push_back(error.message);
      host["missing"] = texts;
      host["error"] = error_code_name(missing[i].front().code);
      host["message"] = fmt::format("{}", fmt::join(texts, "; "));
    }
    if (result.error) {
      host["error"] = error_code_name(result.error->code);
      host["message"] = result.error->message;
    } else {
      host["folder"] = result.done.folder;
      host["files_changed"] = result.done.files_changed;
      host["bytes_from_launcher"] = result.done.bytes_from_launcher;
      host["bytes_from_hosts"] = result.done.bytes_from_hosts;
    }
    if (i < links.size() && !links[i].empty()) host["links_left_out"] = links[i];
    out["hosts"].push_back(std::move(host));
  }
  for (const Error& error : left_out) out["left_out"].push_back(error.message);
  return json_text(out, 2) + "\n";
}

/// Prints one line for the hosts with the same links. Names only a few links: a folder may have
/// thousands.
void say_links_left_out(const HostCrew& crew, const NotCopied& not_copied) {
  constexpr std::size_t kMostNamed = 3;
  std::vector<std::pair<std::string, std::string>> texts;
  for (std::size_t host = 0; host < not_copied.links.size(); ++host) {
    const std::vector<std::string>& links = not_copied.links[host];
    if (links.empty()) continue;
    const std::size_t named = std::min(links.size(), kMostNamed);
    texts.emplace_back(
        crew.results()[host].host,
        fmt::format(
            "{} left out, because what {} to is not in the copy: {}{}",
            counted(links.size(), "symlink"), links.size() == 1 ? "it points" : "they point",
            fmt::join(links.begin(), links.begin() + static_cast<std::ptrdiff_t>(named), ", "),
            links.size() > named ? " ..." : ""));
  }
  for (const FoldedFailure& folded : fold_failures(texts))
    print_stderr("{}: {}\n", config::fold_host_names(folded.hosts), folded.text);
}

/// Prints what of this machine's files was not sent.
void say_left_out(const std::vector<Error>& left_out) {
  for (std::size_t i = 0; i < std::min(left_out.size(), kMostLeftOut); ++i)
    print_stderr("{}\n", sortie::printable(left_out[i].message));
  if (left_out.size() > kMostLeftOut)
    print_stderr("{} more files and folders can not be sent\n", left_out.size() - kMostLeftOut);
}

/// Prints the result and the errors; returns the exit code of the command. A host that failed
/// determines it before a file that was left out, for which it is always the same.
int finish(const HostCrew& crew, const std::string& result_text, const NotCopied& not_copied = {}) {
  const int printed = cli::print_text("sortie", result_text);
  std::vector<HostResult> failed, lacking;
  for (std::size_t i = 0; i < crew.size(); ++i) {
    const HostResult& result = crew.results()[i];
    if (result.error) failed.push_back(result);
    if (i < not_copied.missing.size())
      for (const Error& error : not_copied.missing[i]) lacking.push_back({result.host, error, {}});
  }
  int exit_code = print_host_errors(failed);
  if (print_host_errors(lacking) != kExitOk && exit_code == kExitOk) exit_code = kExitData;
  if (!crew.interrupted()) return exit_code != kExitOk ? exit_code : printed;
  print_stderr("interrupted; the same command continues from here\n");
  return *crew.interrupted();
}

}  // namespace

Result<CopyTargets> copy_targets(const JobOptions& options, std::string_view verb) {
  if (options.hosts.empty() && options.config.empty())
    return fail(ErrorCode::usage,
                fmt::format("sortie: which hosts? `{} {} --hosts 'gpu[01-04]' ...`, or --config"
                            " FILE for the hosts of a job",
                            command_line({}), verb));
  SORTIE_ASSIGN_OR_RETURN(auto loaded, load_options(options));
  resolve_job_paths(loaded.job);
  CopyTargets targets{loaded.job.runner, {}};
  SORTIE_ASSIGN_OR_RETURN(const auto hosts, config::job_hosts(targets.runner));
  for (const config::HostSlots& host : hosts) targets.hosts.push_back(host.name);
  return targets;
}

int push_files(const CopyOptions& options) {
  const std::vector<std::string> locals(options.paths.begin(), options.paths.end() - 1);
  const auto targets = copy_targets(options.job, "push");
  if (!targets) return say(targets.error());
  const auto names = push_names(locals, options.paths.back());
  if (!names) return say(names.error());

  HostCrew crew(targets->runner, targets->hosts);
  LocalTree tree;
  ReadProgress reading;
  std::vector<Error> left_out;
  std::shared_ptr<TreeUpload> upload;
  ProgressLine progress;
  const auto begun = std::chrono::steady_clock::now();
  const auto first = [&]() -> asio::awaitable<Result<>> {
    auto read = co_await read_local_tree(
        names->roots, [&](const ReadProgress& now) { reading = now; },
        [&](const Error& why) { left_out.push_back(why); });
    if (!read) co_return std::unexpected(std::move(read).error());
    tree = std::move(*read);
    if (tree.entries.empty()) co_return std::unexpected(left_out.front());
    const bool relay = relay_pays(options.relay, crew.size(), tree.bytes);
    upload = std::make_shared<TreeUpload>(crew.io().get_executor(), tree, crew.size(), relay,
                                          [&](const std::string& text) {
                                            progress.clear();
                                            print_stderr("{}\n", text);
                                          });
    co_return Result<>();
  };
  const auto work = [&](std::size_t index, std::shared_ptr<HostSession> session) {
    wire::FilesOpen order = order_for(targets->runner, wire::FilesPurpose::put);
    order.folder = names->folder;
    return upload->send_to(index, std::move(session), std::move(order));
  };
  const auto tick = [&] {
    if (upload)
      progress.show(fmt::format("push to {}", counted(crew.size(), "host")), upload->bytes_done(),
                    upload->bytes_wanted());
    else
      progress.show(shown_progress(reading));
  };
  const Result<> ran = crew.run(first, work, tick);
  progress.clear();
  if (!ran) return crew.interrupted().value_or(say(ran.error()));
  const double seconds = seconds_since(begun);
  const Summary sum = summary_of(crew.results());
  std::string text;
  if (options.json) {
    text = copy_json("sortie/push/1", crew.results(), seconds, {}, left_out);
  } else if (sum.hosts > 0) {
    text = fmt::format("{}, {}, on {} of {} in {:.1f} s: {} written", counted(tree.files, "file"),
                       byte_count(tree.bytes), sum.hosts, counted(crew.size(), "host"), seconds,
                       counted(sum.files, "file"));
    if (sum.from_launcher + sum.from_hosts > 0)
      text += fmt::format(", {} sent from here", byte_count(sum.from_launcher));
    if (sum.from_hosts > 0)
      text += fmt::format(", {} from host to host", byte_count(sum.from_hosts));
    text += '\n';
  }
  const int exit_code = finish(crew, text);
  say_left_out(left_out);
  return exit_code == kExitOk && !left_out.empty() ? kExitData : exit_code;
}

int pull_files(const CopyOptions& options) {
  const std::vector<std::string> remotes(options.paths.begin(), options.paths.end() - 1);
  const auto targets = copy_targets(options.job, "pull");
  if (!targets) return say(targets.error());
  for (const std::string& host : targets->hosts)
    if (auto checked = files::check_entry_name(host); !checked) return say(checked.error());
  std::error_code error;
  const fs::path local = fs::absolute(options.paths.back(), error);

  HostCrew crew(targets->runner, targets->hosts);
  std::vector<DownloadProgress> progresses(crew.size());
  ProgressLine progress;
  const auto begun = std::chrono::steady_clock::now();
  const std::uint64_t list_bytes = std::max(kLeastListBytes, kListBytes / crew.size());
  const auto first = []() -> asio::awaitable<Result<>> { co_return Result<>(); };
  const auto work = [&](std::size_t index, std::shared_ptr<HostSession> session) {
    wire::FilesOpen order = order_for(targets->runner, wire::FilesPurpose::get);
    order.paths = remotes;
    std::string folder = (local / session->host()).string();
    return download_tree(std::move(session), std::move(order), std::move(folder), list_bytes,
                         progresses[index]);
  };
  const auto tick = [&] {
    DownloadProgress sum;
    for (const DownloadProgress& one : progresses) {
      sum.wanted += one.wanted;
      sum.done += one.done;
    }
    progress.show(fmt::format("pull from {}", counted(crew.size(), "host")), sum.done, sum.wanted);
  };
  const Result<> ran = crew.run(first, work, tick);
  progress.clear();
  if (!ran) return crew.interrupted().value_or(say(ran.error()));
  const double seconds = seconds_since(begun);
  const Summary sum = summary_of(crew.results());
  NotCopied not_copied;
  for (DownloadProgress& one : progresses) {
    not_copied.missing.push_back(std::move(one.missing));
    not_copied.links.push_back(std::move(one.links_left_out));
  }
  const bool any = std::ranges::any_of(
      crew.results(), [](const HostResult& result) { return !result.done.folder.empty(); });
  std::string text;
  if (options.json)
    text = copy_json("sortie/pull/1", crew.results(), seconds, not_copied);
  else if (sum.hosts > 0)
    text = fmt::format("{}, {}, from {} of {} in {:.1f} s{}\n", counted(sum.files, "file"),
                       byte_count(sum.from_hosts), sum.hosts, counted(crew.size(), "host"), seconds,
                       any ? fmt::format("; they are in {}/HOST/", local.string()) : "");
  const int exit_code = finish(crew, text, not_copied);
  say_links_left_out(crew, not_copied);
  return exit_code;
}

}  // namespace sortie::launcher
