// Checks of folders, files and the program of a host.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include "launcher/check/evaluate.h"
#include "launcher/console/console.h"

namespace sortie::launcher::check {
namespace {

constexpr std::uint64_t kSpaceFail = 100 * kMiB, kSpaceWarn = 1024 * kMiB;
constexpr std::uint64_t kInodesFail = 100, kInodesWarn = 10000;
/// A synced write that takes longer makes every checkpoint slow.
constexpr std::uint64_t kSyncWarnUs = 1000000;
constexpr const char* kShm = "shm";
/// Per rank: Open MPI's shared-memory segments need at least the first value, NCCL and PyTorch data
/// loaders the second.
constexpr std::uint64_t kShmFail = 8 * kMiB, kShmWarn = 64 * kMiB;

const FolderFacts* folder(const HostResult& host, std::string_view role) {
  const auto found = std::ranges::find(host.report.folders, role, &FolderFacts::role);
  return found == host.report.folders.end() ? nullptr : &*found;
}

/// Judges the free space of a folder; the reason is empty if there is enough.
Finding judge_space(const FolderFacts& facts) {
  if (!facts.error.empty() && !facts.tried)
    return {"", Verdict::fail, fmt::format("{}: {}", facts.path, facts.error), ""};
  const bool counts_inodes = facts.total_inodes > 0;
  Verdict verdict = Verdict::pass;
  if (facts.free_bytes < kSpaceFail || (counts_inodes && facts.free_inodes < kInodesFail))
    verdict = Verdict::fail;
  else if (facts.free_bytes < kSpaceWarn || (counts_inodes && facts.free_inodes < kInodesWarn))
    verdict = Verdict::warn;
  if (verdict == Verdict::pass) return {"", verdict, "", ""};
  return {"", verdict,
          fmt::format("{}: {} and {} inodes free", facts.path, size_text(facts.free_bytes),
                      counts_inodes ? fmt::format("{}", facts.free_inodes) : "any"),
          ""};
}

}  // namespace

Finding judge_disk(const HostResult& host) {
  Finding finding = {"disk", Verdict::none, "", ""};
  std::string passed;
  for (const FolderFacts& facts : host.report.folders) {
    if (facts.role == kShm) continue;
    const Finding space = judge_space(facts);
    if (finding.verdict == Verdict::none) finding.verdict = Verdict::pass;
    finding.verdict = std::max(finding.verdict, space.verdict);
    if (!space.reason.empty())
      finding.reason += fmt::format("{}{}", finding.reason.empty() ? "" : "; ", space.reason);
    passed +=
        fmt::format("{}{} {}", passed.empty() ? "" : ", ", facts.role, size_text(facts.free_bytes));
  }
  if (finding.verdict == Verdict::pass) finding.reason = "free: " + passed;
  if (finding.verdict > Verdict::pass)
    finding.fix =
        "make room there, or use another folder (XDG_CACHE_HOME, XDG_RUNTIME_DIR, "
        "trainer.save_dir)";
  return finding;
}

Finding judge_save_dir(const HostResult& host) {
  const FolderFacts* facts = folder(host, "save_dir");
  if (!facts) return {"save_dir", Verdict::none, "", ""};
  if (!facts->error.empty() || !facts->writable || facts->read_only) {
    const std::string why = !facts->error.empty() ? facts->error : "the file system is read-only";
    const std::string at =
        facts->exists ? facts->path : fmt::format("{} (to be made in {})", facts->path, facts->at);
    return {"save_dir", Verdict::fail, fmt::format("{}: a file can not be written: {}", at, why),
            "correct its owner and mode, or set trainer.save_dir to a folder that is writable "
            "on all hosts"};
  }
  std::string text =
      fmt::format("{}, 64 KiB synced in {:.1f} ms", facts->exists ? "writable" : "can be made",
                  static_cast<double>(facts->sync_us) / 1000);
  if (facts->sync_us < kSyncWarnUs) return {"save_dir", Verdict::pass, std::move(text), ""};
  return {"save_dir", Verdict::warn, std::move(text),
          "see what slows that file system down: checkpoints wait for it"};
}

Finding judge_staged(const HostResult& host, const Expectations& expect) {
  Finding finding = {"staged", Verdict::pass, "", ""};
  for (const StagedFile& file : expect.staged)
    if (!file.error.empty())
      finding.reason +=
          fmt::format("{}{}: {}", finding.reason.empty() ? "" : "; ", file.named, file.error);
  if (!finding.reason.empty())
    return {"staged", Verdict::fail, std::move(finding.reason),
            "put the file there on this machine, or correct runner.stage"};
  const std::string what = fmt::format(
      "{} on this machine, {} go to the host before ranks start",
      expect.staged.size() == 1 ? "1 path is" : fmt::format("{} paths are", expect.staged.size()),
      size_text(expect.staged_bytes));
  // Files that an earlier run left in the cache are not sent again, so too little space is only a
  // warning.
  const FolderFacts* cache = folder(host, "cache");
  if (cache && cache->error.empty() && cache->free_bytes < expect.staged_bytes)
    return {"staged", Verdict::warn,
            fmt::format("{}; {}: {} free", what, cache->path, size_text(cache->free_bytes)),
            "make room there, or set XDG_CACHE_HOME on the host"};
  return {"staged", Verdict::pass, what, ""};
}

Finding judge_shm(const HostResult& host) {
  const FolderFacts* facts = folder(host, kShm);
  if (!facts) return {kShm, Verdict::none, "", ""};
  const std::uint64_t ranks = std::max<std::uint64_t>(1, host.slots.size());
  const char* const fix = "mount -o remount,size=50% /dev/shm (containers: --shm-size)";
  if (!facts->error.empty() || !facts->exists)
    return {kShm, Verdict::fail,
            fmt::format("/dev/shm: {}", facts->error.empty() ? "is not there" : facts->error),
            "mount -t tmpfs tmpfs /dev/shm"};
  std::string text = fmt::format("{} free of {} for {} rank{}", size_text(facts->free_bytes),
                                 size_text(facts->total_bytes), ranks, ranks == 1 ? "" : "s");
  if (facts->free_bytes < ranks * kShmFail) return {kShm, Verdict::fail, std::move(text), fix};
  if (facts->free_bytes < ranks * kShmWarn) return {kShm, Verdict::warn, std::move(text), fix};
  return {kShm, Verdict::pass, std::move(text), ""};
}

Finding judge_port(const HostResult& host) {
  const auto& facts = host.report.port;
  if (!facts) return {"port", Verdict::none, "", ""};
  if (facts->error.empty())
    return {"port", Verdict::pass, fmt::format("{} is free", facts->port), ""};
  return {
      "port", Verdict::fail, fmt::format("MASTER_PORT {}: {}", facts->port, facts->error),
      fmt::format("see who has it (ss -tlnp sport = :{}), or set runner.master_port", facts->port)};
}

Finding judge_program(const HostResult& host, const Expectations& expect) {
  const auto& facts = host.report.program;
  if (!facts) return {"program", Verdict::none, "", ""};
  if (!facts->work_dir && !expect.work_dir.empty())
    return {"program", Verdict::fail,
            fmt::format("runner.work_dir: {} is no folder there", expect.work_dir),
            "create that folder on the host, or correct the key"};
  if (facts->found.empty())
    return {"program", Verdict::fail, fmt::format("{}: {}", facts->name, facts->error),
            "install it at the same place on every host, or name its path there"};
  if (!facts->missing.empty())
    return {"program", Verdict::fail,
            fmt::format("{}: does not load: {}", facts->found, fmt::join(facts->missing, ", ")),
            "install these libraries on the host, or set LD_LIBRARY_PATH in its environment"};
  if (!facts->error.empty())
    return {"program", Verdict::fail, fmt::format("{}: {}", facts->found, facts->error),
            "see what starting it there by hand says"};
  if (!facts->work_dir)
    return {"program", Verdict::warn,
            fmt::format("{}; the current folder of this machine is not there: ranks run in the "
                        "home folder",
                        facts->found),
            "set runner.work_dir to a folder that every host has"};
  return {"program", Verdict::pass, facts->found, ""};
}

std::vector<Finding> judge_files(const std::vector<HostResult>& hosts, const Expectations& expect) {
  std::vector<Finding> findings(hosts.size(), {"data", Verdict::none, "", ""});
  const auto add = [&](std::size_t i, Verdict verdict, const std::string& text, const char* fix) {
    Finding& finding = findings[i];
    if (finding.verdict <= Verdict::pass) finding.reason.clear();
    finding.reason += fmt::format("{}{}", finding.reason.empty() ? "" : "; ", text);
    if (finding.verdict < verdict) finding.fix = fix;
    finding.verdict = std::max(finding.verdict, verdict);
  };
  using Sample = std::pair<std::uint64_t, std::string>;
  for (const std::string& path : expect.files) {
    std::map<Sample, std::size_t> votes;
    std::vector<const FileFacts*> of_host(hosts.size(), nullptr);
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      const auto& files = hosts[i].report.files;
      const auto found = std::ranges::find(files, printable(path), &FileFacts::path);
      if (found == files.end()) continue;
      of_host[i] = &*found;
      if (found->error.empty()) ++votes[{found->size, found->hash}];
    }
    // The reference is the launcher's copy, or else the most common one.
    Sample right;
    std::string whose = "what most hosts have";
    if (const auto local = expect.local_files.find(path); local != expect.local_files.end()) {
      right = {local->second.size, fmt::format("{:016x}", local->second.hash)};
      whose = "the one here";
    } else if (!votes.empty()) {
      const auto most = std::ranges::max_element(votes, {}, [](const auto& v) { return v.second; });
      right = most->first;
    }
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      if (!of_host[i]) continue;
      const FileFacts& facts = *of_host[i];
      if (!facts.error.empty())
        add(i, Verdict::fail, fmt::format("{}: {}", path, facts.error),
            "put the file there, at the same path as on the other hosts");
      else if (Sample(facts.size, facts.hash) != right)
        add(i, Verdict::fail,
            fmt::format("{}: {}, not {}", path,
                        facts.size != right.first
                            ? fmt::format("{} bytes instead of {}", facts.size, right.first)
                            : "other content",
                        whose),
            "copy the right file there: ranks would train on different data");
      else if (findings[i].verdict <= Verdict::pass)
        findings[i].verdict = Verdict::pass;
    }
  }
  for (Finding& finding : findings)
    if (finding.verdict == Verdict::pass)
      finding.reason = fmt::format("{} file{}, all equal", expect.files.size(),
                                   expect.files.size() == 1 ? "" : "s");
  return findings;
}

}  // namespace sortie::launcher::check
