// Checks of the trainer itself, as it answers on its hosts: its build, whether its GPU code loads,
// the versions of CUDA's libraries, and what the ranks will compute on.
#include <fmt/format.h>

#include "launcher/check/compare.h"
#include "launcher/check/gpus.h"

namespace sortie::launcher::check {
namespace {

using Kind = Outlook::Kind;

constexpr std::size_t kShownBuild = 12;  // as in the error of the trainer's start-up check

/// Splits a message "reason; what to do".
std::pair<std::string, std::string> apart(const std::string& message) {
  const std::size_t at = message.rfind("; ");
  if (at == message.npos) return {message, "see what `sortie-train devices` says there"};
  return {message.substr(0, at), message.substr(at + 2)};
}

std::string build_of(const HostResult& host) {
  return host.report.trainer ? host.report.trainer->build.substr(0, kShownBuild) : "";
}

/// Versions that all ranks must have in common; "" unless the host computes on GPUs.
std::string libraries_of(const HostResult& host, const Expectations& expect) {
  if (outlook_of(host, expect).kind != Kind::gpu) return "";
  const TrainerFacts& facts = *host.report.trainer;
  return fmt::format("CUDA {}, cuBLASLt {}, NCCL {}", facts.cuda, facts.cublaslt, facts.nccl);
}

std::string isa_of(const HostResult& host, const Expectations& expect) {
  return outlook_of(host, expect).kind == Kind::cpu && host.report.trainer
             ? host.report.trainer->isa
             : "";
}

std::string answer_text(const HostResult& host, Kind kind) {
  const TrainerFacts& facts = *host.report.trainer;
  const std::string libraries = library_text(host);
  return fmt::format("build {}, {}", build_of(host),
                     kind == Kind::gpu ? libraries : fmt::format("on CPUs ({})", facts.isa));
}

struct Comparison {
  Usual builds, libraries, isas, on_gpus;
};

/// The verdict about a host whose trainer has answered and that is of the same build as most.
Finding judge_devices(const HostResult& host, const Expectations& expect,
                      const Comparison& others) {
  const Outlook outlook = outlook_of(host, expect);
  const auto [reason, fix] = apart(outlook.why);
  // With "auto" a host without GPUs is left to the check of the GPUs.
  const bool has_gpus = gpu_count(host) > 0;
  if (outlook.kind == Kind::cpu && expect.device == "cuda")
    return {"trainer", Verdict::fail, fmt::format("trainer.device = \"cuda\": {}", reason), fix};
  if (outlook.kind == Kind::cpu && expect.device == "auto" && has_gpus) {
    const std::string with = others.on_gpus.hosts(host);
    if (!with.empty())
      return {
          "trainer", Verdict::fail,
          fmt::format("its ranks would compute on CPUs, and those of {} on GPUs: {}", with, reason),
          fix};
    return {"trainer", Verdict::warn,
            fmt::format("its ranks would compute on CPUs, although it has GPUs: {}", reason), fix};
  }
  if (outlook.kind == Kind::gpu)
    if (const std::string own = libraries_of(host, expect); others.libraries.differs(host, own))
      return {"trainer", Verdict::fail,
              fmt::format("{}, and {} on {}", own, others.libraries.value(host),
                          others.libraries.hosts(host)),
              "install one build of Sortie and one set of CUDA's libraries on all hosts"};
  if (outlook.kind == Kind::cpu)
    if (const std::string own = isa_of(host, expect); others.isas.differs(host, own))
      return {"trainer", Verdict::fail,
              fmt::format("its CPU has {}, and {} on {}", own, others.isas.value(host),
                          others.isas.hosts(host)),
              "use hosts of one kind, or limit all to the narrower set, as with --set "
              "runner.env.ONEDNN_MAX_CPU_ISA=AVX2"};
  return {"trainer", Verdict::pass, answer_text(host, outlook.kind), ""};
}

Finding judge_answer(const HostResult& host, const Expectations& expect, const Comparison& others) {
  const TrainerFacts& facts = *host.report.trainer;
  if (!facts.error.empty())
    return {"trainer", Verdict::fail, facts.error, "see what `sortie-train devices` says there"};
  if (facts.build.empty())
    return {"trainer", Verdict::fail, "its answer to `devices --json` has no build",
            "install sortie-train of the same version as sortie there"};
  if (const std::string own = build_of(host); others.builds.differs(host, own))
    return {"trainer", Verdict::fail,
            fmt::format("build {}, and {} on {}", own, others.builds.value(host),
                        others.builds.hosts(host)),
            "copy the same sortie-train to every host, or share the folder"};
  return judge_devices(host, expect, others);
}

}  // namespace

std::vector<Finding> judge_trainer(const std::vector<HostResult>& hosts,
                                   const Expectations& expect) {
  std::vector<Finding> findings = blank(hosts, "trainer");
  const Comparison others = {
      Usual(hosts, build_of),
      Usual(hosts, [&](const HostResult& host) { return libraries_of(host, expect); }),
      Usual(hosts, [&](const HostResult& host) { return isa_of(host, expect); }),
      Usual(hosts, [&](const HostResult& host) {
        return std::string(outlook_of(host, expect).kind == Kind::gpu ? "gpu" : "");
      })};
  for (std::size_t i = 0; i < hosts.size(); ++i)
    if (hosts[i].report.trainer) findings[i] = judge_answer(hosts[i], expect, others);
  return findings;
}

}  // namespace sortie::launcher::check
