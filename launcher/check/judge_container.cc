// Checks for containers: the engine, the image, disk space for it, GPUs, mounts, shared memory.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "launcher/check/compare.h"
#include "launcher/check/evaluate.h"

namespace sortie::launcher::check {
namespace {

constexpr std::uint64_t kImageSpaceFail = 512 * kMiB, kImageSpaceWarn = 10240 * kMiB;
constexpr std::uint64_t kShmDefault = 64 * kMiB, kShmPerRank = 64 * kMiB;

const ContainerFacts* answering(const HostResult& host) {
  const auto& facts = host.report.container;
  return facts && facts->problem.empty() ? &*facts : nullptr;
}

std::string fix_for(const ContainerFacts& facts, const std::string& engine) {
  if (facts.problem == "absent")
    return fmt::format("install {} there, or choose another runner.container.engine", engine);
  if (facts.problem == "denied")
    return engine == "docker"
               ? "add the user to the group docker (its members are root of the host: docs/"
                 "security.md), or run rootless docker or podman"
               : fmt::format("give the user access to {}'s socket, or use rootless podman", engine);
  if (facts.problem == "root")
    return "sign in there as root, or install nerdctl with a rootless containerd";
  if (facts.problem == "stopped") return fmt::format("start it there: systemctl start {}", engine);
  return fmt::format("see what `{} info` says there", facts.client);
}

}  // namespace

Finding judge_engine(const HostResult& host, const Expectations& expect) {
  if (!host.report.container || !expect.container) return {"engine", Verdict::none, "", ""};
  const ContainerFacts& facts = *host.report.container;
  if (!facts.problem.empty())
    return {"engine", Verdict::fail, facts.error, fix_for(facts, expect.container->engine)};
  return {"engine", Verdict::pass,
          fmt::format("{} {}{}", facts.client, facts.version, facts.rootless ? ", rootless" : ""),
          ""};
}

std::vector<Finding> judge_images(const std::vector<HostResult>& hosts,
                                  const Expectations& expect) {
  const auto id_of = [](const HostResult& host) {
    const ContainerFacts* facts = answering(host);
    return facts ? facts->image_id : std::string();
  };
  const Usual ids(hosts, id_of, Usual::Among::all);
  std::vector<Finding> findings;
  for (const HostResult& host : hosts) {
    Finding& finding = findings.emplace_back(Finding{"image", Verdict::none, "", ""});
    const ContainerFacts* facts = answering(host);
    if (!facts || !expect.container || expect.container->image.empty()) continue;
    const ContainerExpectations& wanted = *expect.container;
    const std::string push =
        fmt::format("sortie image push {} --hosts HOSTS brings it from here", wanted.image);
    if (!facts->image_error.empty()) {
      finding = {"image", Verdict::fail, facts->image_error, "see what the engine is busy with"};
    } else if (!facts->image_present) {
      finding =
          wanted.pull == "never"
              ? Finding{"image", Verdict::fail,
                        fmt::format("{} is not there, and pull = \"never\"", wanted.image), push}
              : Finding{"image", Verdict::pass,
                        fmt::format("{} is not there: the run pulls it", wanted.image), ""};
    } else if (ids.differs(host, facts->image_id) && wanted.pull != "always") {
      finding = {"image", Verdict::fail,
                 fmt::format("{} is {}, another one than most hosts have", wanted.image,
                             facts->image_id.substr(0, 19)),
                 "set runner.container.pull = \"always\", or " + push};
    } else {
      finding = {"image", Verdict::pass,
                 facts->image_id.empty() ? "there" : facts->image_id.substr(0, 19), ""};
    }
  }
  return findings;
}

/// Free space where the engine stores images.
Finding judge_image_disk(const HostResult& host) {
  const ContainerFacts* facts = answering(host);
  if (!facts || facts->total_bytes == 0) return {"image_disk", Verdict::none, "", ""};
  std::string text = fmt::format("{} free in {}", size_text(facts->free_bytes), facts->root);
  const Verdict verdict = facts->free_bytes < kImageSpaceFail   ? Verdict::fail
                          : facts->image_present                ? Verdict::pass
                          : facts->free_bytes < kImageSpaceWarn ? Verdict::warn
                                                                : Verdict::pass;
  return {"image_disk", verdict, std::move(text),
          verdict == Verdict::pass
              ? ""
              : fmt::format("remove unused images: {} image prune", facts->client)};
}

Finding judge_gpu_runtime(const HostResult& host, const Expectations& expect) {
  const ContainerFacts* facts = answering(host);
  if (!facts || !expect.container || !host.report.gpus)
    return {"gpu_runtime", Verdict::none, "", ""};
  const GpuFacts& gpus = *host.report.gpus;
  const bool nvidia = gpus.driver + gpus.devices + gpus.gpus.size() > 0;
  const std::string& wanted = expect.container->gpus;
  if (wanted == "none") return {"gpu_runtime", Verdict::pass, "no GPUs asked for", ""};
  if (!nvidia && gpus.rocm > 0)
    return {"gpu_runtime", Verdict::pass, "AMD: their devices need none", ""};
  if (!nvidia)
    return wanted == "auto"
               ? Finding{"gpu_runtime", Verdict::pass, "no GPUs here", ""}
               : Finding{
                     "gpu_runtime", Verdict::fail,
                     fmt::format("runner.container.gpus = \"{}\", but the host has none", wanted),
                     "set runner.container.gpus = \"auto\" or \"none\", or use other hosts"};
  if (facts->gpu_runtime) return {"gpu_runtime", Verdict::pass, "NVIDIA container toolkit", ""};
  return {"gpu_runtime", Verdict::fail, "GPUs, but no NVIDIA container toolkit",
          "install nvidia-container-toolkit there and run nvidia-ctk runtime configure"};
}

Finding judge_mounts(const HostResult& host) {
  if (!host.report.container) return {"mounts", Verdict::none, "", ""};
  const ContainerFacts& facts = *host.report.container;
  if (facts.missing_mounts.empty()) return {"mounts", Verdict::pass, "all there", ""};
  return {"mounts", Verdict::fail, fmt::format("{}", fmt::join(facts.missing_mounts, "; ")),
          "make them there, or correct runner.container.mounts"};
}

Finding judge_container_shm(const HostResult& host, const Expectations& expect) {
  if (!expect.container || !host.report.host) return {"shm", Verdict::none, "", ""};
  const std::uint64_t bytes =
      expect.container->shm_bytes > 0 ? expect.container->shm_bytes : kShmDefault;
  const std::uint64_t ranks = std::max<std::uint64_t>(1, host.slots.size());
  std::string text = fmt::format("{} in a container for {} rank{}", size_text(bytes), ranks,
                                 ranks == 1 ? "" : "s");
  if (bytes < kShmPerRank * ranks)
    return {
        "shm", Verdict::warn, std::move(text),
        fmt::format("set runner.container.shm_size to {} or more", size_text(kShmPerRank * ranks))};
  if (bytes > host.report.host->memory_bytes)
    return {"shm", Verdict::warn,
            fmt::format("{}, more than the host's memory of {}", text,
                        size_text(host.report.host->memory_bytes)),
            "lower runner.container.shm_size"};
  return {"shm", Verdict::pass, std::move(text), ""};
}

}  // namespace sortie::launcher::check
